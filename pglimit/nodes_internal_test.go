package pglimit

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The pool of a node asks for that host, and shows the coordinator's client certificate.
func TestAPoolLikeTheCoordinatorsShowsItsCertificate(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	must(err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	must(err)
	dir := t.TempDir()
	must(os.WriteFile(filepath.Join(dir, "cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600))
	must(os.WriteFile(filepath.Join(dir, "key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	config, err := pgxpool.ParseConfig("host=coordinator user=u sslmode=require sslrootcert='' sslcertmode=allow sslnegotiation=postgres sslcert=" + filepath.Join(dir, "cert") + " sslkey=" + filepath.Join(dir, "key"))
	must(err)

	shown := make(chan tls.ConnectionState, 1)
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close() //nolint:errcheck // the handshake is all
			if _, err := pgproto3.NewBackend(server, server).ReceiveStartupMessage(); err == nil {
				_, _ = server.Write([]byte("S")) // yes to SSL
			}
			secure := tls.Server(server, &tls.Config{
				Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}}, ClientAuth: tls.RequestClientCert,
			})
			_ = secure.Handshake()
			shown <- secure.ConnectionState()
		}()
		return client, nil
	}
	coordinator, err := pgxpool.NewWithConfig(t.Context(), config)
	must(err)
	t.Cleanup(coordinator.Close)
	nodes := NodesFrom(coordinator, nil)
	t.Cleanup(nodes.Close)
	node, err := nodes.open("node", 5433)
	must(err)
	if _, err := node.Exec(t.Context(), "select 1"); err == nil {
		t.Error("it answered")
	}
	select {
	case <-time.After(time.Minute):
		t.Fatal("it does not connect")
	case state := <-shown:
		if state.ServerName != "node" || len(state.PeerCertificates) != 1 {
			t.Errorf("it asks for %q and shows %d certificates", state.ServerName, len(state.PeerCertificates))
		}
	}
}
