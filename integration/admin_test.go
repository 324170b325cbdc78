package integration

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/adapters/adminlimit"
	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// adminPage is the page of a database, below /ops/.
type adminPage struct {
	*testing.T
	url    string
	client *http.Client
}

func newAdminPage(t *testing.T, pool *pgxpool.Pool, config adminlimit.Config) adminPage {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", adminlimit.New(pool, config)))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client := server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return adminPage{t, server.URL + "/ops/", client}
}

// send a form, or get the page if it is nil. It returns the status, where that leads, and the text as a person reads it.
func (p adminPage) send(path string, form url.Values, header ...string) (status int, location, text string) {
	p.Helper()
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(p.Context(), method, p.url+path, body)
	must(p, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := p.client.Do(r)
	must(p, err)
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(answer.Body)
	must(p, err)
	if got := answer.Header; !strings.Contains(got.Get("Content-Security-Policy"), "frame-ancestors 'none'") || got.Get("Cache-Control") != "no-store" {
		p.Errorf("%s: header %v", path, got)
	}
	return answer.StatusCode, answer.Header.Get("Location"), html.UnescapeString(string(content))
}

// shows that the page has all of these texts.
func (p adminPage) shows(path string, status int, texts ...string) {
	p.Helper()
	got, _, text := p.send(path, nil)
	if got != status {
		p.Errorf("%s: %d, not %d", path, got, status)
	}
	for _, want := range texts {
		if !strings.Contains(text, want) {
			p.Errorf("%s does not show %q:\n%s", path, want, text)
		}
	}
}

// posts a form, which does what it should and leads to a page, or is answered with the status and all texts.
func (p adminPage) posts(path string, form url.Values, status int, texts ...string) {
	p.Helper()
	got, location, text := p.send(path, form)
	if got != status {
		p.Errorf("%s %v: %d, not %d: %s", path, form, got, status, text)
	}
	for _, want := range texts {
		if !strings.Contains(text+location, want) {
			p.Errorf("%s %v: %q is not in %s%s", path, form, want, text, location)
		}
	}
}

func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v
}

const hostile = `<script>alert("1")</script>&'ü`

// An operator finds who is limited most, raises the limit of that key for a day, and sees who did it; then the bucket is
// reset, which is logged.
func TestAdminPage(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	top := pglimit.TopFrom(pool, pglimit.TopConfig{})
	askTimes(t, newLimiter(t, pool, strategies.TokenBucket{}, counting("api", top)), map[string]int{"ann": 4, hostile: 2})
	execute(t, pool, "update pglimit.top_keys set at_ns = at_ns - 30000000000, since_ns = since_ns - 30000000000")
	follower := counting("api", nil)
	follower.Limits = pglimit.LimitsFrom(pool, pglimit.LimitsConfig{})
	following := newLimiter(t, pool, strategies.TokenBucket{}, follower)
	_, err := following.Allow(t.Context(), "bob")
	must(t, err)
	places, err := semaphore.New(pool, semaphore.Config{Name: "imports", Places: 2})
	must(t, err)
	_, _, err = places.TryAcquire(t.Context(), "nightly")
	must(t, err)

	var log bytes.Buffer
	p := newAdminPage(t, pool, adminlimit.Config{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Who: func(*http.Request) string { return "eve\x00" },
	})
	until(t, "the instance says that it follows", func() bool {
		_, _, text := p.send("", nil)
		return strings.Contains(text, "yes, within two seconds")
	})
	p.shows("", 200, ">api</a>", "per second denied, 0 per second failed",
		`<a href="key?key=ann&limiter=api">ann</a>`, `<td class="n">3</td>`, "Answered in", "Of this pool")
	p.shows("?by=granted", 200, "Granted most")
	p.shows("permits", 200, "imports", "nightly")
	p.shows("key?limiter=imports&key=nightly", 200, "Permits held")
	p.shows("key?limiter=api", 303)
	p.shows("key?limiter=api&key=ann", 200, "the limit in the service’s configuration", "3, 3, 3", "1 used", "1 live instances",
		`<option value="24h" selected>for a day`)

	set := values("do", "set", "from", "key", "limiter", "api", "key", "ann", "limit", "500/1m", "expires", "24h", "note", "ticket 7")
	p.posts("change", set, 303, "key?key=ann&limiter=api&done=set")
	p.shows("key?limiter=api&key=ann&done=set", 200, "The rule is set", "enforce 500/1m, until ", "ticket 7", "(eve,", "holds", `value="500/1m"`)
	until(t, "the service follows", func() bool {
		d, err := following.Allow(t.Context(), "ann")
		return err == nil && d.Allowed
	})
	p.shows("rules?limiter=api", 200, "enforce 500/1m", "no rule")

	change := func(pairs ...string) url.Values {
		v := values("limiter", "api", "note", "why")
		maps.Copy(v, values(pairs...))
		return v
	}
	p.posts("change", change("do", "disable", "key", "ann"), 303, "rules?limiter=api&done=disable")
	p.shows("rules?limiter=api", 200, "500/1m", "disabled", "back to it …", "limiter=api&expires=20")
	p.posts("change", change("do", "enable", "key", "ann"), 303)
	p.posts("change", change("do", "set", "limit", "1/1h", "expires", ""), 303)
	p.posts("change", change("do", "set", "key", "ann", "limit", "2/1h", "expires", ""), 303)
	p.shows("rules?limiter=api", 200, "under the one above")
	p.posts("change", change("do", "set", "action", "off", "expires", "1h"), 303)
	p.shows("rules?limiter=api", 200, "It is off", "Switch on again")
	p.shows("key?limiter=api&key=ann", 200, `<p class="big">off, until`)
	p.posts("change", change("do", "delete", "action", "off"), 303)
	p.posts("change", change("do", "delete", "key", "ann"), 303)
	p.shows("rules?limiter=api", 200, "action=enforce&key=ann&limit=2%2F1h&limiter=api&expires=#set")
	p.shows("rules?limiter=api&limit=2%2F1h&expires=", 200, `<option value="" selected>until it is changed`)
	p.shows("key?limiter=api&key=ann", 200, `<p class="big">enforce 2/1h`)

	for _, wrong := range []struct {
		form  url.Values
		texts []string
	}{
		{change("do", "set", "from", "key", "key", "ann", "limit", "5/fortnight"), []string{`"fortnight"`, `value="5/fortnight"`, "ann of api"}},
		{change("do", "set", "limit", "5/s", "expires", "soon"), []string{`The end of a rule is "soon": it must be a time`}},
		{change("do", "set", "limit", "5/s", "note", " "), []string{"note is empty"}},
		{change("do", "set", "action", "mend"), []string{"mend"}},
		{change("do", "set", "action", "enforce"), []string{"need a limit, such as 100/1m"}},
		{change("do", "set", "limiter", "", "limit", "5/s"), []string{"it needs a limiter"}},
		{change("do", "delete", "key", "nobody"), []string{"There is no such rule"}},
		{change("do", "burn"), []string{`do is "burn"`}},
	} {
		p.posts("change", wrong.form, 422, wrong.texts...)
	}
	p.posts("change", change("note", "a\x00b"), 400, "note has a NUL byte")
	p.posts("change", change("note", strings.Repeat("x", 70_000)), 400, "The form cannot be read")
	for _, names := range [][2]string{{"api", "a\x00b"}, {"api\x00", "k"}, {"\xff", "k"}, {strings.Repeat("n", 200), "k"}, {"", "k"}} {
		p.shows("key?"+values("limiter", names[0], "key", names[1]).Encode(), 400, "role=\"alert\"")
	}
	p.shows("nothing", 404, "There is no such page.")

	history := query[int](t, pool, "select count(*) from pglimit.limits_history")
	if by := query[string](t, pool, "select distinct by from pglimit.limits_history"); history != 8 || by != "eve" {
		t.Errorf("%d changes by %q", history, by)
	}
	reset := values("limiter", "api", "key", "ann", "note", "")
	for _, note := range []string{"", " \t", strings.Repeat("é", 1001)} {
		reset.Set("note", note)
		p.posts("reset", reset, 422, "A reset needs a note")
	}
	reset.Set("note", "why")
	for _, key := range []string{"a\rb", "a\nb"} {
		reset.Set("key", key)
		p.posts("reset", reset, 400, "in a shell")
	}
	reset.Set("key", "ann")
	reset.Set("note", "ticket 8")
	p.posts("reset", reset, 303, "key?key=ann&limiter=api&done=reset")
	if left := query[int](t, pool, "select count(*) from pglimit.buckets where key = 'ann'"); left != 0 {
		t.Error("the bucket is not full")
	}
	lines := log.String()
	if strings.Count(lines, `msg="pglimit: rule"`) != history || strings.Count(lines, "\n") != history+1 {
		t.Errorf("logged %s", lines)
	}
	for _, want := range []string{
		`msg="pglimit: reset" who=eve limiter=api key=ann note="ticket 8" remote=127.0.0.1:`,
		`msg="pglimit: rule" who=eve limiter=api key=ann note="ticket 7" remote=127.0.0.1:`,
		` do=set prefix="" action=enforce limit=500/1m expires=24h`,
	} {
		if !strings.Contains(lines, want) {
			t.Errorf("logged %s, not %s", lines, want)
		}
	}

	// Other strategies: what the rule's token bucket would have is not said, and a reset reaches all of them.
	for _, other := range []strategies.Strategy{strategies.SlidingWindow{}, strategies.ExclusionRange{}} {
		of := newLimiter(t, pool, other, pglimit.Config{Name: "api", Limit: pglimit.Every(time.Hour)})
		_, err := of.Allow(t.Context(), "ann")
		must(t, err)
	}
	if _, _, text := p.send("key?limiter=api&key=ann", nil); !strings.Contains(text, "sliding_window") || strings.Contains(text, "tokens are there") {
		t.Errorf("the key's page: %s", text)
	}
	p.posts("reset", reset, 303)
	if left := query[int](t, pool, "select (select count(*) from pglimit.windows) + (select count(*) from pglimit.exclusion_range)"); left != 0 {
		t.Errorf("%d buckets are not full", left)
	}
	p.shows("key?limiter=api&key=ann", 200, "tokens are there", "unless the limiter uses")

	// Names are shown as they are, and never as HTML.
	_, _, _ = p.send("", nil)
	raw, err := p.client.Get(p.url + "key?" + values("limiter", "api", "key", hostile).Encode())
	must(t, err)
	text, err := io.ReadAll(raw.Body)
	must(t, err)
	must(t, raw.Body.Close())
	if raw.StatusCode != http.StatusOK || strings.Contains(string(text), "<script>alert") || !strings.Contains(html.UnescapeString(string(text)), hostile[:8]) {
		t.Errorf("%d %s", raw.StatusCode, text)
	}
}

// At most two requests use the pool, which decisions need too: others are told so, while the two go on.
func TestAdminUsesTwoConnections(t *testing.T) {
	t.Parallel()
	asked, goOn := make(chan struct{}, 10), make(chan struct{})
	p := newAdminPage(t, newMigrated(t), adminlimit.Config{May: func(*http.Request, string, bool) bool {
		asked <- struct{}{}
		<-goOn
		return true
	}})
	answers := make(chan int)
	for range 2 {
		go func() {
			status, _, _ := p.send("rules", nil)
			answers <- status
		}()
	}
	for range 2 {
		<-asked
	}
	p.shows("rules", 503, "busy: ")
	go func() {
		for range asked {
			continue // so that nobody waits
		}
	}()
	close(goOn)
	for range 2 {
		if status := <-answers; status != 200 {
			t.Error(status)
		}
	}
	close(asked)
}

// A form that another site sends changes nothing, and neither does a page whose name leads to this machine see anything.
func TestAdminRefusesOtherSites(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	p := newAdminPage(t, pool, adminlimit.Config{})
	form := values("do", "set", "limiter", "api", "limit", "5/s", "note", "mine", "key", "ann")
	for _, path := range []string{"change", "reset"} {
		for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "", "Origin", "https://example.org"}} {
			if status, _, text := p.send(path, form, header...); status != 403 {
				t.Errorf("%s with %v: %d %s", path, header, status, text)
			}
		}
		if status, _, _ := p.send(path, nil); status != 404 && status != 405 {
			t.Errorf("GET %s: %d", path, status)
		}
	}
	if rules, err := limits.New(pool).List(t.Context()); err != nil || len(rules) > 0 {
		t.Errorf("%v, %v", rules, err)
	}
	for host, want := range map[string]int{"localhost:8080": 200, "127.0.0.1": 200, "[::1]:1": 200, "rebound.example": 403, "localhost.example:80": 403} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url, http.NoBody)
		must(t, err)
		r.Host = host
		answer, err := p.client.Do(r)
		must(t, err)
		must(t, answer.Body.Close())
		if answer.StatusCode != want {
			t.Errorf("%s: %d", host, answer.StatusCode)
		}
	}
}

// Whose rights are for one limiter sees and changes that one, whatever is asked.
func TestAdminRights(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	top := pglimit.TopFrom(pool, pglimit.TopConfig{})
	table := limits.New(pool)
	for _, name := range []string{"mine", "theirs", "seen"} {
		askTimes(t, newLimiter(t, pool, strategies.TokenBucket{}, counting(name, top)), map[string]int{"key-of-" + name: 3})
		_, err := table.Set(t.Context(), limits.Rule{Limiter: name, Limit: "7/s", Note: "note of " + name})
		must(t, err)
		places, err := semaphore.New(pool, semaphore.Config{Name: name, Places: 2})
		must(t, err)
		_, _, err = places.TryAcquire(t.Context(), "place-of-"+name)
		must(t, err)
	}
	// What is hidden does not displace what is not: changes, permits and keys of others, of which lists have fewer.
	execute(t, pool, `insert into pglimit.limits_history (at, role, by, note, limiter, before)
		select now(), 'r', 'b', 'n', 'theirs', '{"limiter": "theirs", "kind": "live"}' from generate_series(1, 60)`)
	execute(t, pool, `insert into pglimit.top_keys (limiter, slot, keys, denied, granted, at_ns)
		select 'theirs', s::text, array_agg(s || 'k' || i), array_agg(9), array_agg(9), pglimit.clock_ns()
		from generate_series(1, 9) s, generate_series(1, 99) i group by s`)
	execute(t, pool, `insert into pglimit.permits (limiter, key, last_token, at_ns, forget_ns, holders, tokens, weights, since_ns, until_ns, held)
		select 'a theirs', i, last_token, at_ns, forget_ns, holders, tokens, weights, since_ns, until_ns, held from pglimit.permits, generate_series(1, 300) i
		where limiter = 'theirs'`)
	p := newAdminPage(t, pool, adminlimit.Config{May: func(_ *http.Request, limiter string, change bool) bool {
		return limiter == "mine" || (limiter == "seen" || limiter == "their") && !change
	}})
	if _, _, text := p.send("rules", nil); strings.Contains(text, "Nothing was ever changed") {
		t.Error("the history is empty")
	}
	for path, shows := range map[string][]string{
		"": {"key-of-mine", "key-of-seen"}, "?by=granted": {"key-of-mine", "key-of-seen"}, "rules": {"note of mine", "note of seen"},
		"permits": {"place-of-mine", "place-of-seen"}, "rules?limiter=seen": {"note of seen"}, "key?limiter=seen&key=key-of-seen": {"7/s"},
		"key?limiter=their&key=k": {"No rule holds"}, // and no similar name
	} {
		p.shows(path, 200, shows...)
		if _, _, text := p.send(path, nil); strings.Contains(text, "theirs") || strings.Contains(text, "Answered in") {
			t.Errorf("%s shows what is not theirs to see:\n%s", path, text)
		}
		if _, _, text := p.send(path, nil); strings.Contains(path, "seen") && strings.Contains(text, `method="post"`) {
			t.Errorf("%s has a form", path)
		}
	}
	for _, path := range []string{"rules?limiter=theirs", "key?limiter=theirs&key=key-of-theirs"} {
		p.shows(path, 403, "You may not see the limiter theirs.")
	}
	before := query[string](t, pool, "select json_agg(l)::text || (select json_agg(b)::text from pglimit.token_bucket b) from pglimit.limits l")
	for _, limiter := range []string{"theirs", "seen", ""} {
		for _, do := range []string{"set", "delete", "disable", "enable"} {
			p.posts("change", values("do", do, "limiter", limiter, "limit", "9/s", "note", "x"), 403, "You may not change")
		}
		p.posts("change", values("do", "set", "action", "off", "limiter", limiter, "note", "x"), 403)
		p.posts("reset", values("limiter", limiter, "key", "key-of-"+limiter, "note", "x"), 403)
	}
	if after := query[string](t, pool, "select json_agg(l)::text || (select json_agg(b)::text from pglimit.token_bucket b) from pglimit.limits l"); after != before {
		t.Errorf("%s became %s", before, after)
	}
	p.posts("change", values("do", "set", "limiter", "mine", "limit", "9/s", "note", "x"), 303)
}

// With a secret, keys are found and logged as hashes.
func TestAdminFindsHashedKeys(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	top := pglimit.TopFrom(pool, pglimit.TopConfig{HashKeys: bytes.Repeat([]byte("secret"), 3)})
	askTimes(t, newLimiter(t, pool, strategies.TokenBucket{}, counting("api", top)), map[string]int{"ann": 5})
	var log bytes.Buffer
	p := newAdminPage(t, pool, adminlimit.Config{Top: top, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.shows("", 200, `<th scope="row">`+top.Shown("ann")+"</th>")
	p.shows("key?limiter=api&key=ann", 200, "4, 4, 4")
	p.posts("reset", values("limiter", "api", "key", "ann", "note", "x"), 303)
	if lines := log.String(); !strings.Contains(lines, "key="+top.Shown("ann")) {
		t.Error(lines)
	}
}

// A database that does not answer, or is not migrated, is said so, in a page that is there all the same.
func TestAdminWithoutADatabase(t *testing.T) {
	t.Parallel()
	nobody, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/x")
	must(t, err)
	t.Cleanup(nobody.Close)
	for says, pool := range map[string]*pgxpool.Pool{"cannot be reached": nobody, `run "pglimit migrate up"`: newPool(t, newDatabase(t), 4)} {
		p := newAdminPage(t, pool, adminlimit.Config{Logger: slog.New(slog.DiscardHandler)})
		for _, path := range []string{"", "rules", "key?limiter=api&key=ann", "permits"} {
			p.shows(path, 200, "All times are UTC", says)
		}
		form := values("do", "set", "limiter", "api", "key", "ann", "limit", "5/s", "note", "x")
		p.posts("change", form, 503, says, `value="5/s"`)
		p.posts("reset", form, 503, says)
	}
}

// A table that somebody locks hides only the parts that read it.
func TestAdminWithALockedTable(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "lock table pglimit.top_keys in access exclusive mode")
	must(t, err)
	p := newAdminPage(t, pool, adminlimit.Config{})
	p.shows("", 200, "Postgres did not answer in 2s", "No live instance follows")
	must(t, tx.Rollback(t.Context()))
}

// Rates are what processes counted, however often they write and the page reads; a curve begins with what is in the
// table.
func TestAdminCurves(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	write := func(slot string, ago, granted, denied, failed int) {
		execute(t, pool, fmt.Sprintf(`insert into pglimit.top_keys (limiter, slot, keys, denied, granted, at_ns, since_ns, granted_total, denied_total, failed_total)
			select 'api', '%s', '{}', '{}', '{}', now_ns - %d * 1000000000::bigint, now_ns - %d * 1000000000::bigint, %d, %d, %d
			from (select pglimit.clock_ns() as now_ns offset 0) c`, slot, ago, ago+60, granted, denied, failed))
	}
	for i := range 4 { // a minute each: the last of them until eight seconds ago, so that all of it is drawn
		write(fmt.Sprint("one", i), 8+60*i, 600, 1200, 60)
		write(fmt.Sprint("two", i), 8+60*i, 600, 0, 0)
	}
	execute(t, pool, "insert into pglimit.top_keys values ('idle', 's', '{}', '{}', '{}', pglimit.clock_ns())")
	for i := range 20 {
		execute(t, pool, "insert into pglimit.top_keys values ($1, 's', '{}', '{}', '{}', pglimit.clock_ns() - 60000000000, null, 1)", fmt.Sprint("small", i))
	}
	p := newAdminPage(t, pool, adminlimit.Config{})
	status, _, text := p.send("", nil)
	var granted, denied, failed float64
	_, label, _ := strings.Cut(text, `aria-label="`)
	for found := range strings.SplitSeq(label, `aria-label="`) {
		if n, _ := fmt.Sscanf(found, "%f per second granted, %f per second denied, %f per second failed", &granted, &denied, &failed); n == 3 && denied > 0 {
			break
		}
	}
	// The last two seconds before the end of the curve are of no minute.
	if status != 200 || granted < 18 || granted > 20 || denied < 18 || denied > 20 || failed < .9 || failed > 1 {
		t.Errorf("%v granted, %v denied, %v failed: %s", granted, denied, failed, text)
	}
	if n := strings.Count(text, "<article>"); n != 12 || !strings.Contains(text, "9 more are less busy") || strings.Contains(text, ">idle<") {
		t.Errorf("%d curves", n)
	}
}
