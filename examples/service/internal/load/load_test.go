package load

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// All users ask at all endpoints, and go when ctx ends, even if nobody answers them.
func TestUsers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	users, paths := map[string]bool{}, map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		users[r.Header.Get("X-User")], paths[r.URL.Path] = true, true
		enough := len(users) >= 5 && len(paths) == 2
		mu.Unlock()
		if enough {
			cancel()
			<-r.Context().Done()
		}
	}))
	defer server.Close()

	l, err := New(MostUsers, 0, server.URL+"/search", server.URL+"/export")
	if err != nil {
		t.Fatal(err)
	}
	l.Run(ctx)
	server.Close() // and with it the last requests
	if len(users) < 5 || len(paths) != 2 || users[""] {
		t.Errorf("users %v at %v", users, paths)
	}
	for _, users := range []int{-1, MostUsers + 1} {
		if _, err := New(users, 0, server.URL); err == nil {
			t.Errorf("there may be %d users", users)
		}
	}
}

// Users leave when their time is over.
func TestUsersLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := New(1, 30*time.Second, "http://nobody.invalid:port") // whom the client does not ask
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		l.Run(t.Context())
		if lasted := time.Since(began); lasted != 30*time.Second {
			t.Errorf("it lasted %v", lasted)
		}
	})
}
