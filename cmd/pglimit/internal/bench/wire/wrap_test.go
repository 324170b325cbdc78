package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// relay takes connections from the listener to the server of the tests, and returns the server's
// URL with that host. With a TLS config, it speaks TLS.
func relay(t *testing.T, listener net.Listener, host string, secure *tls.Config) string {
	t.Helper()
	u, err := url.Parse(serverURL(t))
	must(t, err)
	to := u.Host
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = client.Close() }()
				if secure != nil {
					// The client asks whether it may; the answer is one byte.
					if _, err := io.ReadFull(client, make([]byte, 8)); err != nil {
						return
					}
					if _, err := client.Write([]byte("S")); err != nil {
						return
					}
					client = tls.Server(client, secure)
				}
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(server, client)
					_ = server.Close()
				}()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	u.Host = ""
	return fmt.Sprintf("%s&host=%s", u, url.QueryEscape(host))
}

func tcpListener(t *testing.T) (listener net.Listener, port string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, port, err = net.SplitHostPort(listener.Addr().String())
	must(t, err)
	return listener, port
}

func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	listener, port := tcpListener(t)
	address := relay(t, listener, "127.0.0.1", selfSigned(t))
	address = strings.Replace(address, "sslmode=disable", "sslmode=require", 1) + "&port=" + port
	checkTrips(t, address, func(t *testing.T, conn *pgx.Conn) {
		if _, ok := conn.PgConn().Conn().(*tls.Conn); !ok {
			t.Errorf("it is a %T", conn.PgConn().Conn())
		}
	})
}

// The first host does not answer, and the second is one that is counted too.
func TestFallbacks(t *testing.T) {
	t.Parallel()
	dead, deadPort := tcpListener(t)
	must(t, dead.Close())
	listener, port := tcpListener(t)
	address := relay(t, listener, "127.0.0.1,127.0.0.1", nil) + "&port=" + deadPort + "," + port
	checkTrips(t, address, func(*testing.T, *pgx.Conn) {})
}

// checkTrips sends queries, near and far, and cancels one.
func checkTrips(t *testing.T, address string, check func(*testing.T, *pgx.Conn)) {
	t.Helper()
	for _, latency := range []time.Duration{0, 20 * time.Millisecond} {
		pool, meter := open(t, address, 1, latency)
		conn, err := pool.Acquire(t.Context())
		must(t, err)
		check(t, conn.Conn())
		for range 3 {
			began := time.Now()
			got := trips(meter, func() {
				_, err := conn.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol)
				must(t, err)
			})
			if took := time.Since(began); got != 1 || took < latency {
				t.Errorf("a query %v away: %d round trips in %v", latency, got, took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		began := time.Now()
		if _, err := conn.Exec(ctx, "select pg_sleep(300)"); !errors.Is(err, context.Canceled) || time.Since(began) > time.Minute {
			t.Errorf("cancelled: %v after %v", err, time.Since(began))
		}
		conn.Release()
		pool.Close() // returns once pgx has cancelled the statement, over another connection
		if got := meter.Count().Connections; got != 2 {
			t.Errorf("%d connections were opened, want the one that is cancelled and one that says so", got)
		}
	}
}

// What was hooked before stays hooked, and its errors count.
func TestHooksThatWereThere(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(serverURL(t))
	must(t, err)
	dial := config.DialFunc
	var dialled, connected atomic.Int64
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return dial(ctx, network, address)
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		connected.Add(1)
		return conn.Exec(ctx, "select 1").Close()
	}
	var m Meter
	Wrap(&config.Config, &m, 0)
	copied := config.Copy()
	conn, err := pgx.ConnectConfig(t.Context(), copied)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if got := m.Count(); dialled.Load() != 1 || connected.Load() != 1 || got.Trips != 0 || got.SetUp < 3 {
		t.Errorf("dialled %d, connected %d, counted %+v", dialled.Load(), connected.Load(), got)
	}

	refusal := errors.New("no")
	copied.AfterConnect = func(context.Context, *pgconn.PgConn) error { return refusal }
	Wrap(&copied.Config, &m, 0)
	if _, err := pgx.ConnectConfig(t.Context(), copied); !errors.Is(err, refusal) {
		t.Errorf("AfterConnect refused: %v", err)
	}

	hidden := config.Copy()
	hidden.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		return struct{ net.Conn }{conn}, nil
	}
	if _, err := pgx.ConnectConfig(t.Context(), hidden); err == nil || !strings.Contains(err.Error(), "NetConn") {
		t.Errorf("a connection that hides the one that counts: %v", err)
	}
}
