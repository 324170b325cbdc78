package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// New makes a middleware: it passes requests that the limiter allows to the handler, and answers the others. It can
// wrap any number of handlers, which then share the limit, and it is safe for concurrent use.
//
// It panics if the limiter is nil, if a field of the config is not valid, or if the limiter's strategy cannot do what
// the config asks.
func New(limiter *pglimit.Limiter, config Config) func(http.Handler) http.Handler {
	m := newMiddleware(limiter, config)
	err := m.limits.Check(admission.Uses{
		Key: config.Key != nil, Limit: config.Limit != nil, Requests: config.Requests != nil, Refund: config.Refund != nil,
	})
	if err == nil && (config.Headers < Draft11 || config.Headers > None) {
		err = fmt.Errorf("httplimit: Config.Headers is %d: it must be Draft11, Legacy or None", config.Headers)
	}
	if err != nil {
		//nolint:forbidigo // as a router does on a bad pattern, when the program starts: so New fits where a middleware does
		panic(err)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

func newMiddleware(limiter *pglimit.Limiter, config Config) *middleware {
	return &middleware{Config: config, limits: admission.Limits{
		Limiter: limiter, Logger: config.Logger, Adapter: "httplimit",
	}}
}

type middleware struct {
	Config
	limits admission.Limits
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
	case !a.allowed && admission.Fallback(a.decisions):
		m.fail(w, r, ErrFallback, a.retryAfter)
	case !a.allowed:
		a.setFields(w.Header(), m.Headers, m.Denied == nil)
		m.deny(w, r, a)
	default:
		a.setFields(w.Header(), m.Headers, false)
		taken := slices.Clone(a.decisions)
		a.release()
		inner := r.WithContext(admission.With(r.Context(), m.limits.Limiter, taken))
		m.pass(w, inner, next, taken)
		r.Pattern = inner.Pattern // which a mux inside has set, for middlewares outside that name a request by it
		return
	}
	a.release()
}

// decide asks the limiter, and notes its answer in a.
func (m *middleware) decide(r *http.Request, a *answer) error {
	key, err := admission.Key(m.Key(r))
	if err != nil {
		return err
	}
	cost := int64(1)
	if m.Cost != nil {
		if cost, err = admission.Cost(m.Cost(r)); err != nil {
			return err
		}
	}
	var group pglimit.Group
	if m.Requests != nil {
		group, err = m.limits.AskAll(r.Context(), m.Requests(r, key), cost)
	} else {
		request := pglimit.Request{Key: key, Tokens: cost}
		if m.Limit != nil {
			request.Limit = m.Limit(r)
		}
		group, err = m.limits.Ask(r.Context(), request, a.decisions)
	}
	a.allowed, a.retryAfter, a.decisions = group.Allowed, group.RetryAfter, group.Decisions
	return err
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
	if status >= http.StatusInternalServerError && r.Context().Err() == nil { // else the client has gone
		m.limits.Undecided(r.Context(), err)
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if challenge := (challengeError("")); errors.As(err, &challenge) && challenge != "" {
		h.Set("WWW-Authenticate", string(challenge))
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
