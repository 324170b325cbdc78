package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/adapters/internal/admission"
)

// KeyFunc returns the key of a call: whom it is counted for. An error is answered by
// [Config].Failed, with the status that [StatusOf] has for it.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// Subject counts calls by what authentication found: a user, a tenant, an organisation. The function of returns it from
// the context. If it returns "", the error is [ErrNoKey] and the answer INTERNAL, because the interceptor that
// authenticates, and rejects unknown clients, belongs in front. For calls without a subject, see [FirstOf]:
// FirstOf(Subject(…), Unauthenticated) ends them with UNAUTHENTICATED.
//
// The key is kind, a colon and the subject: "user:42". "Ann" and "ann" are different keys: return the subject as it is
// stored, not as the client has spelt it.
func Subject(kind string, of func(ctx context.Context) string) KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		subject := of(ctx)
		if subject == "" {
			return "", fmt.Errorf("%w: there is no %s: put the interceptor that authenticates in front of the limiter",
				ErrNoKey, kind)
		}
		return kind + ":" + subject, nil
	}
}

// Metadata counts calls by the value of that metadata, such as x-api-key, that was checked before: a client that may
// send anything gets a new bucket each time. If it is missing, the error is [ErrNoKey]; if it is missing or occurs
// twice, the answer is INVALID_ARGUMENT.
//
// The key is the name in lower case, a colon and the value: "x-api-key:5f2e". It is stored in the database: for secrets
// use [Hashed].
func Metadata(name string) KeyFunc {
	name = strings.ToLower(name)
	return func(ctx context.Context, _ Call) (string, error) {
		switch values := metadata.ValueFromIncomingContext(ctx, name); {
		case len(values) == 0 || len(values) == 1 && values[0] == "":
			return "", fmt.Errorf("%w: %w", ErrNoKey, status.Errorf(codes.InvalidArgument, "the metadata %s is missing", name))
		case len(values) > 1:
			return "", status.Errorf(codes.InvalidArgument, "the metadata %s is there %d times: send it once", name, len(values))
		default:
			return name + ":" + values[0], nil
		}
	}
}

// PeerIP counts calls by the address that called this server: "ip:192.0.2.7", or "ip:2001:db8:0:1::/64", because a
// provider's customer has at least 64 bits of an IPv6 address to choose from. Zones are stripped, and IPv4 in IPv6 is
// IPv4. Behind a proxy all clients have the address of the proxy: use [ClientIP]. A peer without an IP address, as on a
// Unix socket, gets INTERNAL.
func PeerIP(ctx context.Context, call Call) (string, error) { return peerIP(ctx, call) }

var peerIP = ClientIP(httplimit.Proxies{})

// ClientIP counts calls by the address of the client, like [PeerIP], also behind your own proxies that append the
// address that called them to the metadata x-forwarded-for, or to that of Field: see [httplimit.Proxies]. If the
// address is not certain, the answer is INTERNAL.
//
// It panics if the proxies are not valid, as [httplimit.ClientIP] does.
func ClientIP(proxies httplimit.Proxies) KeyFunc {
	of := httplimit.ClientIP(proxies)
	field := cmp.Or(proxies.Field, "X-Forwarded-For")
	header := http.CanonicalHeaderKey(field)
	return func(ctx context.Context, _ Call) (string, error) {
		from, known := peer.FromContext(ctx)
		if !known || from.Addr == nil {
			return "", errors.New("the context has no peer: it is not that of a call of a gRPC server")
		}
		return of(&http.Request{
			RemoteAddr: from.Addr.String(),
			Header:     http.Header{header: metadata.ValueFromIncomingContext(ctx, field)},
		})
	}
}

// Method counts calls by their method: "method:/package.Service/Method".
//
// On a server with [grpc.UnknownServiceHandler], such as a proxy, clients choose the method, and with it a new bucket
// each time. There, use your own function that maps unknown methods to one key.
func Method(_ context.Context, call Call) (string, error) { return "method:" + call.Method, nil }

// Unauthenticated ends every call with UNAUTHENTICATED. Use it at the end of a [FirstOf], if nothing authenticates in
// front of the limiter.
func Unauthenticated(context.Context, Call) (string, error) {
	return "", status.Error(codes.Unauthenticated, "this needs credentials: log in first")
}

// Constant counts all calls together, for a limit of the whole service.
func Constant(key string) KeyFunc {
	return func(context.Context, Call) (string, error) { return key, nil }
}

// Join counts calls by all of the keys at once, such as each user at each method:
// "user:42|method:/package.Service/Method". Each key must be present.
func Join(keys ...KeyFunc) KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		return admission.Join(keys, func(key KeyFunc) (string, error) { return key(ctx, call) })
	}
}

// FirstOf counts a call by the first of the keys that it has, such as the user if there is one, else the address. Any
// error other than [ErrNoKey] ends the search.
func FirstOf(keys ...KeyFunc) KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		return admission.FirstOf(keys, func(key KeyFunc) (string, error) { return key(ctx, call) })
	}
}

// Hashed counts calls by a hash of the key, 43 characters, and the database stores only the hash. For API keys, which
// nobody can guess, the secret may be nil. For guessable keys, such as addresses of people, use a secret of at least 16
// random bytes, the same in all instances: the hash is an HMAC-SHA256.
func Hashed(key KeyFunc, secret []byte) KeyFunc {
	hash := admission.Hash(secret)
	return func(ctx context.Context, call Call) (string, error) { return hash(key(ctx, call)) }
}
