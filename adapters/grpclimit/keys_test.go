package grpclimit_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

type userKey struct{}

func userOf(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

func TestKeys(t *testing.T) {
	t.Parallel()
	user := func(name string) context.Context { return context.WithValue(context.Background(), userKey{}, name) }
	sent := func(pairs ...string) context.Context {
		return metadata.NewIncomingContext(context.Background(), metadata.Pairs(pairs...))
	}
	from := func(addr net.Addr) context.Context {
		return peer.NewContext(context.Background(), &peer.Peer{Addr: addr})
	}
	tcp := func(ip, zone string) context.Context {
		return from(&net.TCPAddr{IP: net.ParseIP(ip), Port: 1234, Zone: zone})
	}
	subject, apiKey := grpclimit.Subject("user", userOf), grpclimit.Metadata("X-Api-Key")
	via := func(proxy string, pairs ...string) context.Context {
		return metadata.NewIncomingContext(tcp(proxy, ""), metadata.Pairs(pairs...))
	}
	behind := grpclimit.ClientIP(httplimit.Proxies{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	const invalid = codes.InvalidArgument
	for _, c := range []struct {
		name string
		key  grpclimit.KeyFunc
		ctx  context.Context
		want string
		code codes.Code // if there is an error
	}{
		{"subject", subject, user("42"), "user:42", 0},
		{"no subject", subject, user(""), "", codes.Internal},
		{"metadata", apiKey, sent("x-api-key", "5f2e"), "x-api-key:5f2e", 0},
		{"no metadata", apiKey, context.Background(), "", invalid},
		{"empty metadata", apiKey, sent("x-api-key", ""), "", invalid},
		{"metadata twice", apiKey, sent("x-api-key", "5f2e", "x-api-key", "5f2e"), "", invalid},
		{"IPv4", grpclimit.PeerIP, tcp("192.0.2.7", ""), "ip:192.0.2.7", 0},
		{"IPv6", grpclimit.PeerIP, tcp("2001:db8:0:1:2:3:4:5", ""), "ip:2001:db8:0:1::/64", 0},
		{"a Unix socket", grpclimit.PeerIP, from(&net.UnixAddr{Name: "@", Net: "unix"}), "", codes.Internal},
		{"no address", grpclimit.PeerIP, from(nil), "", codes.Internal},
		{"no peer", grpclimit.PeerIP, context.Background(), "", codes.Internal},
		{"behind a proxy", behind, via("10.0.0.1", "x-forwarded-for", "203.0.113.9, 192.0.2.7"), "ip:192.0.2.7", 0},
		{"behind a proxy that says nonsense", behind, via("10.0.0.1", "x-forwarded-for", "unknown"), "", codes.Internal},
		{"behind a proxy with a field of its own", grpclimit.ClientIP(httplimit.Proxies{Count: 1, Field: "CF-Connecting-IP"}), via("10.0.0.1", "cf-connecting-ip", "192.0.2.7", "x-forwarded-for", "192.0.2.8"), "ip:192.0.2.7", 0},
		{"method", grpclimit.Method, user(""), "method:" + emptyCall, 0},
		{"joined", grpclimit.Join(subject, grpclimit.Method), user("42"), "user:42|method:" + emptyCall, 0},
		{"joined with none", grpclimit.Join(subject, apiKey), user("42"), "", invalid},
		{"first", grpclimit.FirstOf(subject, apiKey), context.WithValue(sent("x-api-key", "5f2e"), userKey{}, "42"), "user:42", 0},
		{"none of both", grpclimit.FirstOf(apiKey, subject), user(""), "", codes.Internal},
		{"an error that is not the lack of a key", grpclimit.FirstOf(apiKey, grpclimit.Constant("k")), sent("x-api-key", "1", "x-api-key", "2"), "", invalid},
		{"hashed", grpclimit.Hashed(subject, []byte("secret")), user("42"), "SqdVGOxU47NBnmXarZBrkoEoLb5MrGYk4hR4uhhLDCk", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key, err := c.key(c.ctx, grpclimit.Call{Method: emptyCall})
			if key != c.want {
				t.Errorf("the key is %q, not %q; error %v", key, c.want, err)
			}
			if got := grpclimit.StatusOf(err).Code(); c.code == invalid && got != invalid {
				t.Errorf("%v is answered with %v", err, got)
			}
			if (err != nil) != (c.code != 0) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// The peer of a real connection has an address.
func TestPeerOfAConnection(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	limiter := newLimiter(t, pglimittest.Memory(), perHour(5))
	client := serveOn(t, listener, listener.Addr().String(), limiter, grpclimit.Config{Key: grpclimit.PeerIP}, new(service))
	wantCode(t, client, codes.OK)
	wantLeft(t, limiter, "ip:127.0.0.1", 4)
}
