package main

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/internal/pgserver"
)

// TestMain makes the binary of the tests the program itself, if DATABASE_URL is set by TestServer.
func TestMain(m *testing.M) {
	if os.Getenv("GRPC_TEST_RUNS_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A client is answered ten times, and then told when to come back. Another method has its own ten.
func TestServer(t *testing.T) {
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
	server.Env = append(os.Environ(), "GRPC_TEST_RUNS_MAIN=1", "DATABASE_URL="+postgres.URL(""), "ADDR="+address)
	server.Stderr = t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })

	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := grpc_health_v1.NewHealthClient(conn)
	began, answered := time.Now(), 0
	const late = 12 // on a busy machine an answer may be, which may have cost a call
	lost := 0
	for lost < late {
		_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if code := status.Code(err); code == codes.OK {
			answered++
		} else if code == codes.ResourceExhausted {
			break
		} else if lost++; code != codes.Unavailable {
			t.Fatal(err)
		}
	}
	// One comes back in six seconds.
	if most := 10 + int(time.Since(began)/(6*time.Second)); answered < 10-lost || answered > most || lost == late {
		t.Errorf("%d calls were answered, %d were not, in %v", answered, lost, time.Since(began))
	}
	for tries := 1; ; tries++ {
		_, err := client.List(t.Context(), &grpc_health_v1.HealthListRequest{})
		if err == nil {
			break
		}
		if tries == late || status.Code(err) != codes.Unavailable {
			t.Fatalf("another method: %v", err)
		}
	}
}
