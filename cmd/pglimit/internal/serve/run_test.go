package serve

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// running is a server on a port of its own, until the context ends; then ended has its error.
func running(t *testing.T, ctx context.Context, stop Stop) (s *Server, url string, ended chan error) { //nolint:revive // the context is not that of the call
	t.Helper()
	s = newServer(t, limits, pglimittest.MemoryOn(time.Now))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	ended = make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener, stop) }()
	return s, "http://" + listener.Addr().String(), ended
}

func send(t *testing.T, method, url, body string) (status int, text string, closes bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, "", false
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, "", false
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	read, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return answer.StatusCode, string(read), answer.Close
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("it does not come about")
		}
	}
}

// waiter sends a request that waits for tokens for a long time, and returns when it does.
func waiter(t *testing.T, s *Server, url string) (answered chan string) {
	t.Helper()
	send(t, http.MethodPost, url+"/v1/allow", `{"limiter":"login","key":"ann","tokens":2}`)
	answered = make(chan string, 1)
	go func() {
		_, text, _ := send(t, http.MethodPost, url+"/v1/allow", `{"limiter":"login","key":"ann","wait_ms":60000}`)
		answered <- text
	}()
	eventually(t, func() bool { return s.limiters["login"].Stats().Asleep == 1 })
	return answered
}

func TestReadinessFailsFirstAndRequestsAreStillAnswered(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	s, url, ended := running(t, ctx, Stop{Drain: 3 * time.Second, Grace: time.Minute})
	if status, text, closes := send(t, http.MethodGet, url+"/readyz", ""); status != 200 || closes {
		t.Errorf("%d %s", status, text)
	}
	if !s.loopback {
		t.Error("it does not know that it listens on this machine only")
	}
	stop()
	eventually(t, s.stopping.Load)
	if status, text, closes := send(t, http.MethodGet, url+"/readyz", ""); status != 503 || !closes || !strings.Contains(text, "stopping") {
		t.Errorf("%d %s, closes: %v", status, text, closes)
	}
	if status, text, closes := send(t, http.MethodPost, url+"/v1/allow", `{"limiter":"api","key":"k"}`); status != 200 || !closes {
		t.Errorf("%d %s, closes: %v", status, text, closes)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "http://"), time.Second); err == nil {
		t.Error("it still listens")
	}
}

// A request that waits for longer than the grace is told so, and its connection is not cut.
func TestGraceEndsAWait(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	s, url, ended := running(t, ctx, Stop{Grace: 50 * time.Millisecond})
	answered := waiter(t, s, url)
	stop()
	if text := <-answered; !strings.Contains(text, `"cause":"closed"`) {
		t.Errorf("it is answered %s", text)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A wait that the limiter answers must not be cut: its timeout may pass at the door, and again in Postgres.
func TestAnswerMayTakeTheTimeoutTwice(t *testing.T) {
	t.Parallel()
	s := newServer(t, "limiters: {api: {limit: 1/s, timeout: 1s}, slow: {limit: 1/s, timeout: 1m}}", pglimittest.MemoryOn(time.Now))
	if least := bodyTimeout + time.Minute + time.Minute + maxWait; s.writeTimeout() <= least {
		t.Errorf("an answer may take %v, and %v are needed", s.writeTimeout(), least)
	}
}

// A client that closes its half of the connection may still read. It must not take an empty answer,
// or none, for a grant.
func TestClientThatClosesItsHalfIsTold(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	_, url, ended := running(t, ctx, Stop{Grace: time.Minute})
	send(t, http.MethodPost, url+"/v1/allow", `{"limiter":"login","key":"ann","tokens":2}`)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	must(t, err)
	r := request(http.MethodPost, url+"/v1/allow?denied=429", `{"limiter":"login","key":"ann","wait_ms":60000}`)
	must(t, errors.Join(r.Write(conn), conn.(*net.TCPConn).CloseWrite()))
	answer, err := http.ReadResponse(bufio.NewReader(conn), r)
	must(t, err)
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusBadRequest || err != nil || !strings.Contains(string(text), "closed its half") {
		t.Errorf("%d %s %v", answer.StatusCode, text, err)
	}
	if err := errors.Join(answer.Body.Close(), conn.Close()); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A client that goes away while it waits gives its tokens back.
func TestClientThatLeavesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	s, url, ended := running(t, ctx, Stop{Grace: time.Minute})
	send(t, http.MethodPost, url+"/v1/allow", `{"limiter":"login","key":"ann","tokens":2}`)
	leaving, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(leaving, http.MethodPost, url+"/v1/allow", strings.NewReader(`{"limiter":"login","key":"ann","wait_ms":60000}`))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	gone := make(chan error, 1)
	go func() {
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		gone <- err
	}()
	stats := s.limiters["login"].Stats
	eventually(t, func() bool { return stats().Asleep == 1 })
	leave()
	if err := <-gone; err == nil {
		t.Error("it was answered")
	}
	eventually(t, func() bool { return stats().Asleep == 0 && stats().GivenBack == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A request that waits for its tokens while the limits are replaced gets them, by the limits that it met. Then
// those limiters are closed. A request after that meets the new ones.
func TestReloadLosesNoRequest(t *testing.T) {
	inBubble(t, "limiters: {login: {limit: 1/1s}}", func(b bench) {
		answer := func(body string) int {
			w := httptest.NewRecorder()
			b.ServeHTTP(w, request(http.MethodPost, "/v1/allow", body))
			return w.Code
		}
		old := b.limiters["login"]
		answer(`{"limiter":"login","key":"ann"}`)
		waiting := make(chan int)
		go func() { waiting <- answer(`{"limiter":"login","key":"ann","wait_ms":5000}`) }()
		synctest.Wait()
		limits, err := parse([]byte("limiters: {other: {limit: 1/1s}}"))
		if err != nil {
			b.Fatal(err)
		}
		limits[0].Strategy = b.memory
		if err := b.Reload(append(limits, limits...), nil); err == nil {
			b.Error("a name twice is not refused")
		}
		if err := b.Reload(limits, nil); err != nil {
			b.Fatal(err)
		}
		if code := answer(`{"limiter":"other","key":"ann"}`); code != http.StatusOK {
			b.Errorf("the new limiter answers %d", code)
		}
		if code := answer(`{"limiter":"login","key":"ann"}`); code != http.StatusNotFound {
			b.Errorf("the old one answers %d", code)
		}
		if code := <-waiting; code != http.StatusOK {
			b.Errorf("who waited is answered %d", code)
		}
		synctest.Wait()
		if _, err := old.Allow(b.Context(), "bob"); !errors.Is(err, pglimit.ErrClosed) {
			b.Errorf("the old limiter is not closed: %v", err)
		}
	})
}
