package httplimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/adapters/internal/failures"
	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// New makes a middleware: it passes requests that the limiter allows to the handler, and answers the others. It can
// wrap any number of handlers, which then share the limit, and it is safe for concurrent use.
//
// It panics if the limiter is nil or the config is not valid: see [Config.Validate].
func New(limiter *pglimit.Limiter, config Config) func(http.Handler) http.Handler {
	if err := config.Validate(limiter); err != nil {
		//nolint:forbidigo // as a router does on a bad pattern, when the program starts: so New fits where a middleware does
		panic(err)
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	m := &middleware{Config: config, limiter: limiter}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	Config
	limiter          *pglimit.Limiter
	failures, unpaid failures.Log // what the Logger was told of
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.Skip != nil && m.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	a := answers.Get().(*answer)
	err := m.decide(r, a)
	switch {
	case err != nil:
		m.fail(w, r, err, time.Second)
	case !a.allowed && fallback(a.decisions):
		m.fail(w, r, ErrFallback, a.retryAfter)
	case !a.allowed:
		m.setFields(w.Header(), a)
		m.deny(w, r, a)
	default:
		m.setFields(w.Header(), a)
		taken := slices.Clone(a.decisions)
		a.release()
		inner := r.WithContext(passed.With(r.Context(), m.limiter, taken))
		m.pass(w, inner, next, taken)
		r.Pattern = inner.Pattern // which a mux inside has set, for middlewares outside that name a request by it
		return
	}
	a.release()
}

// decide asks the limiter, and notes its answer in a.
func (m *middleware) decide(r *http.Request, a *answer) error {
	key, err := m.Key(r)
	if err != nil {
		return &configError{"Key", err}
	}
	if err := checkKey(key); err != nil {
		return &configError{"Key", err}
	}
	cost := int64(1)
	if m.Cost != nil {
		if cost = m.Cost(r); cost < 1 {
			return &configError{"Cost", fmt.Errorf("is %d: it must be at least 1; requests that cost nothing are for Config.Skip", cost)}
		}
	}
	if m.Requests != nil {
		return m.decideAll(r, key, cost, a)
	}
	var limit pglimit.Limit // the limiter's own
	if m.Limit != nil {
		limit = m.Limit(r)
	}
	d, err := m.limiter.Do(r.Context(), pglimit.Request{Key: key, Limit: limit, Tokens: cost})
	if err != nil {
		return err
	}
	a.allowed, a.retryAfter, a.decisions = d.Allowed, d.RetryAfter, append(a.decisions, d)
	return nil
}

// checkKey checks a key. An empty key is a fault of the server. Any other fault came from the client, because a
// constant key would always have it.
func checkKey(key string) error {
	if key == "" {
		return errors.New("the key is empty: name whom the request is counted for, or return an error")
	}
	if rate.CheckKey(key) == nil {
		return nil
	}
	// Use our own words: the client sees them, and may not know the key, which can hold more than what the client sent.
	why := "is not valid UTF-8, or has a NUL byte"
	if len(key) > rate.MaxKeyBytes {
		why = fmt.Sprintf("has %d bytes: at most %d are allowed", len(key), rate.MaxKeyBytes)
	}
	return &keyError{why: "the key of this request " + why, is: []error{ErrBadRequest}}
}

// decideAll asks for several limits.
func (m *middleware) decideAll(r *http.Request, key string, cost int64, a *answer) error {
	requests := slices.Clone(m.Requests(r, key))
	if len(requests) == 0 {
		return &configError{"Requests", errors.New("there are none: requests without a limit are for Config.Skip")}
	}
	for i := range requests {
		if err := checkKey(requests[i].Key); errors.Is(err, ErrBadRequest) {
			return &configError{"Requests", err} // the client has sent one request
		} else if err != nil {
			return &configError{"Requests", fmt.Errorf("request %d: %w", i, err)}
		}
		switch tokens := requests[i].Tokens; {
		case tokens == 0:
			requests[i].Tokens = cost
		case tokens < 0:
			return &configError{"Requests", fmt.Errorf("request %d: Tokens is %d: it must be at least 1, or 0 for the Cost", i, tokens)}
		}
	}
	group, err := m.limiter.DoAll(r.Context(), requests...)
	if err != nil {
		return err
	}
	a.allowed, a.retryAfter, a.decisions = group.Allowed, group.RetryAfter, append(a.decisions, group.Decisions...)
	return nil
}

// deny answers a request over the limit.
func (m *middleware) deny(w http.ResponseWriter, r *http.Request, a *answer) {
	if m.Denied == nil {
		a.writeDenied(w)
		return
	}
	m.Denied(w, r, a.denial())
}

// fail answers a request without a known decision.
func (m *middleware) fail(w http.ResponseWriter, r *http.Request, err error, retryAfter time.Duration) {
	status := StatusOf(err)
	if status >= http.StatusInternalServerError && r.Context().Err() == nil && !errors.Is(err, ErrBusy) { // else the client has gone
		m.failures.Add(r.Context(), m.Logger, "httplimit: request not decided", err)
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if refused := (*keyError)(nil); errors.As(err, &refused) && refused.challenge != "" {
		h.Set("WWW-Authenticate", refused.challenge)
	}
	if status == http.StatusServiceUnavailable {
		setRetryAfter(h, retryAfter)
	}
	if m.Failed == nil {
		WriteFailed(w, r, err)
		return
	}
	m.Failed(w, r, err)
}

// answer is what the limiter said about a request, and how the client is told.
type answer struct {
	allowed    bool
	retryAfter time.Duration
	decisions  []pglimit.Decision

	text   []byte  // of names, fields and body
	names  []span  // of the decisions' policies
	begun  int     // where the field that is being written begins
	fields []field // to be set
}

// answers are pooled: denials are most frequent when a server has the least time for them.
var answers = sync.Pool{New: func() any { return new(answer) }}

func (a *answer) release() {
	clear(a.decisions) // they hold keys
	a.decisions, a.text, a.names, a.fields = a.decisions[:0], a.text[:0], a.names[:0], a.fields[:0]
	answers.Put(a)
}

// fallback says whether Config.OnError of the Limiter decided, instead of the limit.
func fallback(decisions []pglimit.Decision) bool { return decisions[0].Source == pglimit.FromFallback }
