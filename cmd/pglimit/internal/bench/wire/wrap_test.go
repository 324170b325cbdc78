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
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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
	}
}
