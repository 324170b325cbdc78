package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// running is the program, and what it says where to look.
type running struct {
	urls     []string
	database string // URL, of a throwaway
	stop     func() error
	last     string // what it says after that, once it is stopped
}

// start the program on free ports. It is stopped at the end of the test, at the latest.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"--listen", "127.0.0.1:0"}, args...), out)
		_ = out.CloseWithError(io.EOF)
		ended <- err
	}()
	r := &running{}
	var rest sync.WaitGroup
	r.stop = func() error {
		cancel()
		rest.Wait()
		err := <-ended
		ended <- err
		return err
	}
	t.Cleanup(func() { _ = r.stop() })

	address, database := regexp.MustCompile(`the admin page (http://\S+/)admin/,`), regexp.MustCompile(`psql '(\S+)'`)
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if found := database.FindStringSubmatch(lines.Text()); found != nil {
			r.database = found[1]
		}
		if found := address.FindStringSubmatch(lines.Text()); found != nil {
			r.urls = append(r.urls, found[1])
		}
		if strings.HasPrefix(lines.Text(), "try: ") {
			rest.Go(func() {
				for lines.Scan() {
					r.last += lines.Text() + "\n"
				}
			})
			return r
		}
	}
	t.Fatalf("it ended: %v", r.stop())
	return nil
}

type reply struct {
	status int
	header http.Header
	body   string
}

func get(t *testing.T, url, user string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		request.Header.Set("X-User", user)
	}
	return do(t, request)
}

func do(t *testing.T, request *http.Request) reply {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{response.StatusCode, response.Header, string(body)}
}

// Two instances on a throwaway Postgres, under load, from the first request to the stop.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	s := start(t, "--database-url", "", "--load", "50")
	if len(s.urls) != 2 {
		t.Fatalf("the addresses are %q, want two", s.urls)
	}
	one, two := s.urls[0], s.urls[1]

	t.Run("share a limit for each user and endpoint", func(t *testing.T) {
		for n := 1; ; n++ {
			began := time.Now()
			wrong := share(t, one, two, fmt.Sprint(n))
			if wrong == "" {
				return
			}
			// On a busy machine a decision may come too late (503), or when the tokens are back.
			if n == 10 || time.Since(began) < time.Second && !strings.Contains(wrong, ": 503") {
				t.Fatal(wrong)
			}
		}
	})
	t.Run("metrics", func(t *testing.T) {
		text := get(t, one+"metrics", "").body
		for _, want := range []string{
			`pglimit_allowed_total{limiter="search",source="database",strategy="token_bucket"} [1-9]`,
			`pglimit_limit_tokens_per_second{limiter="export",strategy="token_bucket"} 0.5`,
			`pglimit_round_trip_duration_seconds_count{limiter="search",operation="take",outcome="ok",strategy="token_bucket"} [1-9]`,
			`http_request_duration_seconds_count{code="429",handler="/search"} [1-9]`,
			`pglimit_database_up 1`,
			`go_goroutines [1-9]`,
		} {
			if !regexp.MustCompile(`(?m)^` + want).MatchString(text) {
				t.Errorf("there is no %s in %s", want, text)
			}
		}
	})
	t.Run("admin page", func(t *testing.T) {
		for n := 0; ; n++ { // until both have written what they counted
			page := get(t, two+"admin/", "").body
			if strings.Contains(page, ">search</a>") && strings.Contains(page, "x-user:user-") && strings.Count(page, "yes, within two seconds") == 2 {
				return
			}
			if n == 600 {
				t.Fatal(page)
			}
			<-time.After(100 * time.Millisecond)
		}
	})
	t.Run("and a third, on the database by its URL", func(t *testing.T) {
		third := start(t, "--database-url", s.database)
		if len(third.urls) != 1 {
			t.Errorf("the addresses are %q, want one", third.urls)
		}
		for _, ask := range []struct {
			page, user string
			want       int
		}{{one, "dora", 200}, {third.urls[0], "dora", 429}, {third.urls[0], "carl", 200}} {
			if got := get(t, ask.page+"export", ask.user); got.status != ask.want {
				t.Errorf("%s gets %d at %s, want %d", ask.user, got.status, ask.page, ask.want)
			}
		}
		if err := third.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.stop(); err != nil || s.last != "the throwaway Postgres was removed\n" {
		t.Errorf("stopped: %v, and it says %q", err, s.last)
	}
	if answer, err := http.Get(two + "healthz"); err == nil { //nolint:noctx // it is not there
		_ = answer.Body.Close()
		t.Error("it answers after the stop")
	}
}

// share has users of that number ask both instances, and returns an answer that is not as it should be.
func share(t *testing.T, one, two, number string) string {
	ann, bob := "ann "+number, "bob "+number
	for _, c := range []struct {
		url, user string
		want      int
	}{
		{one + "search", ann, 200}, {two + "search", ann, 429}, {one + "export", ann, 200}, {two + "search", bob, 200}, {one + "search", bob, 429}, {one + "search", "", 400},
	} {
		got := get(t, c.url, c.user)
		retry := got.header.Get("Retry-After")
		if got.status != c.want || (retry == "1" || retry == "2") != (c.want == 429) {
			return fmt.Sprintf("%s as %q: %d, Retry-After %q; want %d", c.url, c.user, got.status, retry, c.want)
		}
	}
	return ""
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"127.0.0.1:8081": "127.0.0.1:8082", ":8081": ":8082", "[::1]:0": "[::1]:0", "127.0.0.1:65535": "", "8081": "", "localhost:http": ""} {
		if got, err := nextPort(address); got != want || (err == nil) != (want != "") {
			t.Errorf("after %s comes %q, %v; want %q", address, got, err, want)
		}
	}
}
