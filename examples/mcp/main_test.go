package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pglimit/ratelimit/internal/pgserver"
)

// TestMain makes the binary of the tests the program itself, if the test says so.
func TestMain(m *testing.M) {
	if os.Getenv("MCP_TEST_RUNS_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

type bearer string

func (token bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(token))
	return http.DefaultTransport.RoundTrip(r)
}

// A user's sessions share ten calls a minute, and what is denied tells the model when to try again. Another user has
// his own, and listing the tools takes none.
func TestTools(t *testing.T) {
	t.Parallel()
	postgres, err := pgserver.Start(t.Context(), pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = postgres.Stop() })
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	server := exec.CommandContext(t.Context(), os.Args[0])
	server.Env = append(os.Environ(), "MCP_TEST_RUNS_MAIN=1", "DATABASE_URL="+postgres.URL(""), "ADDR="+address)
	server.Stderr = t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	connect := func(user string) *mcp.ClientSession {
		t.Helper()
		client := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil)
		for {
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: "http://" + address, HTTPClient: &http.Client{Transport: bearer(user)}, DisableStandaloneSSE: true,
			}, nil)
			if err == nil {
				t.Cleanup(func() { _ = session.Close() })
				return session
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
			<-time.After(50 * time.Millisecond) // it starts
		}
	}
	denied := func(of *mcp.ClientSession) bool {
		t.Helper()
		result, err := of.CallTool(context.WithoutCancel(t.Context()), &mcp.CallToolParams{Name: "now"})
		if err != nil {
			t.Fatal(err)
		}
		if text := result.Content[0].(*mcp.TextContent).Text; result.IsError && !strings.HasPrefix(text, "Too many calls. Try again in ") {
			t.Fatal(text)
		}
		return result.IsError
	}
	ann, again, ben := connect("ann"), connect("ann"), connect("ben")
	began, answered := time.Now(), 0
	for range 30 { // a listing between two calls
		if _, err := again.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if !denied([]*mcp.ClientSession{ann, again}[answered%2]) {
			answered++
		}
	}
	if most := 10 + int(time.Since(began)/(6*time.Second)); answered < 10 || answered > most {
		t.Errorf("%d calls were answered in %v", answered, time.Since(began))
	}
	if denied(ben) {
		t.Error("ben was denied")
	}
}
