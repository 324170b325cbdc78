package pgserver

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var forty2 = map[string]string{"max_connections": "42"}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// started is a server with the settings forty2.
func started(t *testing.T, o Options) *Server {
	t.Helper()
	o.Settings = forty2
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

// serves uses a server and stops it.
func serves(t *testing.T, s *Server, describes string) {
	t.Helper()

	conn := connect(t, s.URL(""))
	var version, setting string
	if err := conn.QueryRow(t.Context(), "select current_setting('server_version'), current_setting('max_connections')").Scan(&version, &setting); err != nil {
		t.Fatal(err)
	}
	if setting != "42" {
		t.Errorf("max_connections is %s, want 42", setting)
	}
	want := "PostgreSQL " + strings.Fields(version)[0] + " " + describes + ", a throwaway on 127.0.0.1:"
	if got := s.Describe(); !strings.HasPrefix(got, want) {
		t.Errorf("Describe() = %q, want %q and a port", got, want)
	}
	if _, err := conn.Exec(t.Context(), `create database "ö /?"`); err != nil {
		t.Fatal(err)
	}
	connect(t, s.URL("ö /?"))
	u, err := url.Parse(s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(superuser, "guess")
	if _, err := pgx.Connect(t.Context(), u.String()); err == nil {
		t.Error("somebody without the password was let in")
	}

	// With connections open.
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stopped again: %v", err)
	}
	if _, err := pgx.Connect(t.Context(), s.URL("")); err == nil {
		t.Error("it answers after Stop")
	}
	if err := s.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "it was stopped") {
		t.Errorf("a restart after Stop: %v", err)
	}
}

// restarts tests a server with a pool that is busy meanwhile.
func restarts(t *testing.T, s *Server) {
	t.Helper()
	address, described := s.URL(""), s.Describe()
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), "create table n (n bigint primary key)"); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	var committed, failed int64
	var back atomic.Bool
	again := make(chan struct{}) // closed once a query succeeds after that
	working.Go(func() {
		for n := int64(0); ctx.Err() == nil; n++ {
			if _, err := pool.Exec(context.WithoutCancel(ctx), "insert into n values ($1)", n); err == nil {
				if committed++; back.Load() { // none may have failed, if this was not run meanwhile
					select {
					case <-again:
					default:
						close(again)
					}
				}
			} else {
				failed++
			}
			_ = s.Describe() // may be called meanwhile
		}
	})
	began := time.Now()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("it was away for %v", time.Since(began))
	back.Store(true)
	select {
	case <-again:
	case <-time.After(time.Minute):
		t.Error("the pool does not come back")
	}
	cancel()
	working.Wait()

	var rows int64
	var started time.Time
	var setting string
	err = pool.QueryRow(t.Context(), "select count(*), pg_postmaster_start_time(), current_setting('max_connections') from n").Scan(&rows, &started, &setting)
	if err != nil {
		t.Fatal(err)
	}
	// What failed may have been committed: the answer was lost.
	if rows < committed || rows > committed+failed || setting != "42" {
		t.Errorf("of %d committed rows %d are there, max_connections is %s", committed, rows, setting)
	}
	if s.URL("") != address || s.Describe() != described {
		t.Errorf("%s was %s", s.Describe(), described)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Errorf("once more: %v", err)
	}
	var later time.Time
	for deadline := time.Now().Add(time.Minute); later.IsZero() && time.Now().Before(deadline); {
		_ = pool.QueryRow(t.Context(), "select pg_postmaster_start_time()").Scan(&later) // its old connections fail first
	}
	if !later.After(started) {
		t.Errorf("it runs since %v, and before it did since %v", later, started)
	}
}
