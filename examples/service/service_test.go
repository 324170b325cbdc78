package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// running is the program, and what it says where to look.
type running struct {
	pages    []string // URLs
	database string   // URL, of a throwaway
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

	page, database := regexp.MustCompile(`the page (http://\S+/),`), regexp.MustCompile(`psql '(\S+)'`)
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if found := database.FindStringSubmatch(lines.Text()); found != nil {
			r.database = found[1]
		}
		if found := page.FindStringSubmatch(lines.Text()); found != nil {
			r.pages = append(r.pages, found[1])
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

func post(t *testing.T, to, users, site string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader(url.Values{"users": {users}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Sec-Fetch-Site", site)
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

// stream of the page's samples, after one that the browser has.
func stream(t *testing.T, page, after string) io.Reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page+"live/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Last-Event-ID", after)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%s of type %s", response.Status, kind)
	}
	return response.Body
}

// Two instances on a throwaway Postgres, under load, from the first request to the stop.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	s := start(t, "--database-url", "", "--load", "50")
	if len(s.pages) != 2 {
		t.Fatalf("the pages are %q, want two", s.pages)
	}
	one, two := s.pages[0], s.pages[1]

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
	t.Run("samples", func(t *testing.T) { samples(t, two) })
	t.Run("load", func(t *testing.T) {
		for users, want := range map[string]int{"20": 200, "-1": 400, "1001": 400, "": 400} {
			if got := post(t, one+"load", users, "same-origin"); got.status != want {
				t.Errorf("%q users: %d, want %d", users, got.status, want)
			}
		}
		if got := post(t, one+"load", "20", "cross-site"); got.status != 403 {
			t.Errorf("from another site: %d", got.status)
		}
		if page := get(t, one, "").body; !strings.Contains(page, `value="20"`) {
			t.Errorf("the page does not say how many users there are: %s", page)
		}
	})
	t.Run("and a third, on the database by its URL", func(t *testing.T) {
		third := start(t, "--database-url", s.database)
		if len(third.pages) != 1 {
			t.Errorf("the pages are %q, want one", third.pages)
		}
		for _, ask := range []struct {
			page, user string
			want       int
		}{{one, "dora", 200}, {third.pages[0], "dora", 429}, {third.pages[0], "carl", 200}} {
			if got := get(t, ask.page+"export", ask.user); got.status != ask.want {
				t.Errorf("%s gets %d at %s, want %d", ask.user, got.status, ask.page, ask.want)
			}
		}
		if got := post(t, third.pages[0]+"load", "20", "same-origin"); got.status != 404 && got.status != 405 {
			t.Errorf("anybody may make load: %d", got.status)
		}
		if err := third.stop(); err != nil {
			t.Error(err)
		}
	})
	t.Run("browser", func(t *testing.T) { inABrowser(t, one) })

	open := stream(t, one, "")
	if err := s.stop(); err != nil || s.last != "the throwaway Postgres was removed\n" {
		t.Errorf("stopped: %v, and it says %q", err, s.last)
	}
	if _, err := io.Copy(io.Discard, open); err != nil {
		t.Errorf("the stream was cut off: %v", err)
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

// samples: each has a number per line of twelve panels. A browser that comes again gets what it
// has missed.
func samples(t *testing.T, page string) {
	next := func(last string) (id string, panels [][]*float64) {
		for lines := bufio.NewScanner(stream(t, page, last)); lines.Scan(); {
			if name, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				id = name
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var event struct{ Panels [][]*float64 }
				if err := json.Unmarshal([]byte(data), &event); err != nil {
					t.Fatal(err)
				}
				return id, event.Panels
			}
		}
		t.Fatal("the stream ended")
		return "", nil
	}
	first, panels := next("")
	second, _ := next(first)
	if first == "" || second <= first {
		t.Errorf("after %q comes %q", first, second)
	}
	without := func(panel []*float64) bool { return slices.Contains(panel, nil) }
	for id, n := second, 0; n < 20 && slices.ContainsFunc(panels, without); n++ { // on a busy machine nobody may have asked in a second
		id, panels = next(id)
	}
	lines := []int{2, 2, 2, 3, 2, 2, 2, 2, 2, 2, 2, 1}
	if len(panels) != len(lines) {
		t.Fatalf("%d panels", len(panels))
	}
	for i, panel := range panels {
		if len(panel) != lines[i] {
			t.Errorf("panel %d has %d lines, want %d", i+1, len(panel), lines[i])
		}
		for j, value := range panel {
			if value == nil || *value < 0 {
				t.Errorf("line %d of panel %d has no number under load", j+1, i+1)
			}
		}
	}
	if granted, most := *panels[4][0], *panels[4][1]; granted < 1 || granted > most || most != 6 {
		t.Errorf("the busiest user has %v of %v", granted, most)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"127.0.0.1:8081": "127.0.0.1:8082", ":8081": ":8082", "[::1]:0": "[::1]:0", "127.0.0.1:65535": "", "8081": "", "localhost:http": ""} {
		if got, err := nextPort(address); got != want || (err == nil) != (want != "") {
			t.Errorf("after %s comes %q, %v; want %q", address, got, err, want)
		}
	}
}
