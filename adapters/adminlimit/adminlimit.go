// Package adminlimit is a page for the people who operate limiters: what each limiter grants, denies and fails in all
// processes, which keys are limited most, what holds for a key and why, the rules of the table pglimit.limits with
// their history, who holds permits, which instances follow the table, and how the database is. On it rules are set,
// disabled and deleted, and keys are reset.
//
//	mux.Handle("/admin/", http.StripPrefix("/admin", adminlimit.New(pool, adminlimit.Config{May: may, Who: who})))
//
// "pglimit serve --admin" is made of it. It is rendered on the server, works without a script, and takes everything
// from its own address. See docs/admin.md.
package adminlimit

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Config of [New]. The zero value of a field means its default.
type Config struct {
	// Top reads the keys that are limited most. With its HashKeys, the page of a key finds the key's line. Nil: keys are
	// shown as they are stored.
	Top *pglimit.Top

	// May says whether the sender of a request may see what concerns a limiter, or with change also set, disable and
	// delete its rules and reset its keys. An empty limiter stands for what concerns all: switching all off, and the
	// health of the database. It is called often: let it be fast. Nil: everybody may do everything, who reaches the page
	// by an IP address or as localhost; other names are refused, because a web page elsewhere could make its own name
	// lead here (DNS rebinding).
	May func(r *http.Request, limiter string, change bool) bool

	// Who is the name of the sender, for the history of the rules and the log of resets. Nil, or empty: the role in
	// Postgres.
	Who func(r *http.Request) string

	// Logger gets a line "pglimit: reset" for each key that is reset: who, limiter, key (as Top shows it), note and
	// remote address; and a line "pglimit: rule" for each change of a rule, also with do (set, delete, enable or disable),
	// prefix, action, limit and expires, as they were sent. Nil: slog.Default().
	Logger *slog.Logger
}

const (
	queryTimeout = 2 * time.Second
	maxBody      = 64 << 10
	mostAtOnce   = 2 // pages and changes that use the pool, which decisions may need too
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed style.css script.js
	static embed.FS

	pages = template.Must(template.New("page").Funcs(functions).Parse(pageHTML))
)

// admin is the handler.
type admin struct {
	pool    *pgxpool.Pool
	config  Config
	table   *limits.Table
	numbers numbers
	slots   chan struct{} // one for each request that uses the pool
}

// New makes the handler of the page, of which all links are relative: mount it with [http.StripPrefix]. It calls
// Postgres only while somebody looks, with two connections of the pool at most, whose role needs what
// "pglimit migrate grants ROLE --for limits" prints, and for resets what "--for decide" does. It asks nobody for a
// password: that is up to the server.
func New(pool *pgxpool.Pool, config Config) http.Handler {
	if config.Top == nil {
		config.Top = pglimit.TopFrom(pool, pglimit.TopConfig{})
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	a := &admin{pool: pool, config: config, table: limits.New(pool), slots: make(chan struct{}, mostAtOnce)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", a.bounded(a.overview))
	mux.HandleFunc("GET /rules", a.bounded(a.rules))
	mux.HandleFunc("GET /key", a.bounded(a.key))
	mux.HandleFunc("GET /permits", a.bounded(a.permits))
	mux.HandleFunc("POST /change", a.posts(a.change))
	mux.HandleFunc("POST /reset", a.posts(a.reset))
	for _, file := range []string{"style.css", "script.js"} {
		mux.HandleFunc("GET /"+file, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, static, file) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.refuse(w, r, http.StatusNotFound, "There is no such page.")
	})
	safe := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "+
			"img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers send forms with "Origin: null"
		if config.May == nil && !isHere(r.Host) {
			a.refuse(w, r, http.StatusForbidden, "The header Host is "+quote(r.Host)+": this page asks nobody for a name, "+
				"and so it is shown only under an IP address or as localhost.")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		safe.ServeHTTP(w, r)
	})
}

// isHere says whether a Host is an IP address or localhost: no name that somebody else can choose.
func isHere(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}

// may says what the sender may: see [Config].May.
func (a *admin) may(r *http.Request, limiter string, change bool) bool {
	return a.config.May == nil || a.config.May(r, limiter, change)
}

// who is the sender's name, without what the history cannot store, or empty.
func (a *admin) who(r *http.Request) string {
	if a.config.Who == nil {
		return ""
	}
	name := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return -1
		}
		return c
	}, strings.ToValidUTF8(a.config.Who(r), ""))
	return strings.ToValidUTF8(name[:min(len(name), 200)], "")
}

// timed is the context of a page's queries.
func timed(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), queryTimeout)
}

// bounded lets few requests at a time use the pool.
func (a *admin) bounded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := timed(r)
		defer cancel()
		select {
		case a.slots <- struct{}{}:
		case <-ctx.Done():
			a.refuse(w, r, http.StatusServiceUnavailable, "busy: others use this page, which has "+
				"two connections to Postgres at most. Try again in a moment.")
			return
		}
		release := sync.OnceFunc(func() { <-a.slots })
		defer release()
		next(slot{w, release}, r)
	}
}

// slot gives back the right to use the pool before it sends the answer, because the browser may be slow.
type slot struct {
	http.ResponseWriter
	release func()
}

func (s slot) WriteHeader(status int) {
	s.release()
	s.ResponseWriter.WriteHeader(status)
}

// page is what every page has.
type page struct {
	View  string // the name of its template
	Title string
	Error string // what was wrong with a form
	Done  string // what a form has done
}

// done says what a form has done, by the name that its redirection has.
var done = map[string]string{
	"set":     "The rule is set. Live instances follow within two seconds.",
	"delete":  "The rule is deleted. Live instances follow within two seconds.",
	"enable":  "The rule is enabled. Live instances follow within two seconds.",
	"disable": "The rule is disabled. Live instances follow within two seconds.",
	"reset": "The bucket is full, and a block has ended. A process that remembers a denial may go on denying the key " +
		"for its Memory.TTL, which is a second by default.",
}

func newPage(r *http.Request, view, title string) page {
	return page{View: view, Title: title, Done: done[r.URL.Query().Get("done")]}
}

// show writes a page. It is whole or an error: the template is executed before anything is sent.
func (a *admin) show(w http.ResponseWriter, r *http.Request, status int, data any) {
	var html bytes.Buffer
	if err := pages.Execute(&html, data); err != nil {
		a.config.Logger.LogAttrs(r.Context(), slog.LevelError, "pglimit: the admin page", slog.String("error", err.Error()))
		http.Error(w, "the page could not be made; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = html.WriteTo(w) // the browser is gone
}

// refuse shows why there is nothing else.
func (a *admin) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	a.show(w, r, status, struct{ page }{page{View: "refused", Title: http.StatusText(status), Error: why}})
}

func (a *admin) forbid(w http.ResponseWriter, r *http.Request, limiter string, change bool) {
	what := "see"
	if change {
		what = "change"
	}
	of := "what concerns all limiters"
	if limiter != "" {
		of = "the limiter " + quote(limiter)
	}
	a.refuse(w, r, http.StatusForbidden, "You may not "+what+" "+of+".")
}

// leadTo another page, which is relative: the prefix is not known here.
func leadTo(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// link to a page, with a query of names and values, of which empty ones are left out.
func link(to string, pairs ...string) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	if len(query) == 0 {
		return to
	}
	return to + "?" + query.Encode()
}

// checkNames says what is wrong with a limiter and a key. An empty key is none.
func checkNames(limiter, key string) error {
	err := rate.CheckLimiter(limiter)
	if err == nil && key != "" {
		err = rate.CheckKey(key)
	}
	return err
}

// why is an error's text for a person.
func why(err error) string {
	if err == nil {
		return ""
	}
	var request *rate.RequestError
	if errors.As(err, &request) {
		return request.Field + " " + request.Why
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "Postgres did not answer in " + queryTimeout.String() + "."
	}
	ours := errors.Is(err, limits.ErrNoRule) || errors.As(err, new(inputError))
	if !ours && errors.Is(postgres.Explain(err), rate.ErrUnavailable) {
		return "Postgres cannot be reached, or does not serve now." // and no host is named
	}
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "limits: "), "pglimit: ")
}
