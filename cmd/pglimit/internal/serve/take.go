package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// maxRequests of one call.
	maxRequests = 1000

	// maxWait bounds the wait for tokens: proxies cut connections that are silent for longer.
	maxWait = time.Minute
)

// allow answers /v1/allow. A denial is 200 too, unless the caller asks for another status.
func (s *Server) allow(w http.ResponseWriter, r *http.Request, t *Token, denied int) *problem {
	var body asks
	if p := body.read(w, r); p != nil {
		return p
	}
	switch {
	case body.Each == nil:
		return s.allowOne(w, r, t, &body, denied)
	case body.All:
		return s.allowAll(w, r, t, body.Each, denied)
	}
	return s.takeEach(w, r, t, body.Each, false)
}

// peek answers /v1/peek. It is always 200, whether or not the tokens are there.
func (s *Server) peek(w http.ResponseWriter, r *http.Request, t *Token, _ int) *problem {
	var body asks
	if p := body.read(w, r); p != nil {
		return p
	}
	switch {
	case body.WaitMS != 0:
		return invalid("wait_ms", "goes with /v1/allow only: a peek does not wait")
	case body.All:
		return invalid("all", "goes with /v1/allow only: of peeks, each is answered by itself")
	case body.Each != nil:
		return s.takeEach(w, r, t, body.Each, true)
	}
	limiter, request, _, p := s.request(r.Context(), t, &body.ask, true)
	if p != nil {
		return p
	}
	d, err := limiter.Do(r.Context(), request)
	if p := limiter.problem(&request, &d, err); p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, "application/json", NewDecision(d))
	return nil
}

// problem returns why there is no decision: an error, or no limit.
func (l limiter) problem(r *pglimit.Request, d *pglimit.Decision, err error) *problem {
	switch {
	case err != nil:
		return problemOfLimit(err, r.Limit)
	case l.ruled && d.Rule == nil && r.Limit == pglimit.Limit{}: // the rule has gone since it was looked for
		return noRule(r.Limiter, r.Key)
	}
	return nil
}

// read and check what the fields say together.
func (b *asks) read(w http.ResponseWriter, r *http.Request) *problem {
	if p := read(w, r, b); p != nil {
		return p
	}
	switch {
	case b.Each != nil && b.ask != (ask{}):
		return invalid("requests", "goes alone: put limiter, key and what else is asked into each of them")
	case b.Each != nil && len(b.Each) == 0:
		return invalid("requests", "is empty: it must have at least one")
	case len(b.Each) > maxRequests:
		return invalid("requests", fmt.Sprintf("has too many elements: at most %d are allowed", maxRequests))
	case b.Each == nil && b.All:
		return invalid("all", "goes with requests only")
	case b.WaitMS < 0 || b.WaitMS > maxWait.Milliseconds():
		return invalid("wait_ms", fmt.Sprintf("is %d: it must be from 0 to %d", b.WaitMS, maxWait.Milliseconds()))
	case b.WaitMS != 0 && (b.Each != nil || b.ID != nil || b.Limit != nil):
		return invalid("wait_ms", "goes without requests, id and limit")
	}
	return nil
}

// request returns the requested request, checked, with the limit that was asked for, or none. limit is the one that
// applies now.
func (s *Server) request(ctx context.Context, t *Token, a *ask, peek bool) (
	l limiter, r pglimit.Request, limit pglimit.Limit, p *problem,
) {
	l, p = s.limiter(ctx, t, a.Limiter)
	if p != nil {
		return l, r, limit, p
	}
	r = pglimit.Request{Limiter: a.Limiter, Key: a.Key, Tokens: 1}
	if a.Tokens != nil {
		r.Tokens = *a.Tokens
	}
	if r.Tokens < 1 {
		return l, r, limit, invalid("tokens",
			fmt.Sprintf("is %d: it must be at least 1 (/v1/peek looks without taking)", r.Tokens))
	}
	r.Unit = r.Tokens
	if peek {
		if a.ID != nil {
			return l, r, limit, invalid("id", "goes with /v1/allow only: a peek is not charged")
		}
		r.Tokens = 0
	}
	if a.ID != nil {
		if r.ID = *a.ID; r.ID == "" {
			return l, r, limit, invalid("id", "is empty: name the request, or leave it out")
		}
		if l.blocks() {
			return l, r, limit, invalid("id", fmt.Sprintf("is %q: limiter %s blocks keys, and takes none: leave it "+
				"out (what is sent again is charged again), or ask a limiter without block", r.ID, a.Limiter))
		}
		if l.Strategy().Check(&rate.Request{Limit: l.Limit(), ID: r.ID}) != nil {
			return l, r, limit, invalid("id", fmt.Sprintf("is %q: limiter %s must have the strategy token_bucket", r.ID,
				a.Limiter))
		}
	}
	if a.Limit != nil {
		var err error
		if r.Limit, err = pglimit.ParseLimit(*a.Limit); err != nil {
			return l, r, limit, invalid("limit", strings.TrimPrefix(bare(err), "limit "))
		}
		if err = l.Strategy().Check(&rate.Request{Limit: r.Limit}); err != nil {
			return l, r, limit, problemOf(err)
		}
	}
	most, limit, p := s.limitOf(l, &r)
	if p != nil {
		return l, r, limit, p
	}
	checked := rate.Request{Limiter: r.Limiter, Key: r.Key, Limit: most, Tokens: r.Tokens, Unit: r.Unit, ID: r.ID}
	if r.ID != "" {
		checked.IDTTL = rate.MaxIDTTL // the Limiter's own is filled in by it
	}
	if err := checked.Validate(); err != nil {
		return l, r, limit, problemOfLimit(err, r.Limit)
	}
	return l, r, limit, nil
}

// limitOf returns the limit of a request, and the largest limit that it may have: a rule without a limit grants or
// denies any number of tokens.
func (s *Server) limitOf(l limiter, r *pglimit.Request) (most, limit pglimit.Limit, p *problem) {
	own := r.Limit != pglimit.Limit{}
	limit = cmp.Or(r.Limit, l.Limit())
	var rule *pglimit.LimitRule
	if s.rules != nil {
		rule, _ = s.rules.Explain(r.Limiter, r.Key, own)
	}
	switch {
	case rule == nil && l.ruled && !own:
		return limit, limit, noRule(r.Limiter, r.Key)
	case rule == nil:
		return limit, limit, nil
	case rule.Unreadable != "":
		return limit, limit, problemOf(&pglimit.RuleError{Rule: rule, Err: errors.New(rule.Unreadable)})
	case rule.Action == pglimit.ActionEnforce:
		return rule.Limit, rule.Limit, nil
	}
	return unlimited, limit, nil
}

func (s *Server) allowOne(w http.ResponseWriter, r *http.Request, t *Token, body *asks, denied int) *problem {
	limiter, request, _, p := s.request(r.Context(), t, &body.ask, false)
	if p != nil {
		return p
	}
	var d pglimit.Decision
	var err error
	if body.WaitMS > 0 {
		if limiter.blocks() {
			return invalid("wait_ms", fmt.Sprintf("is %d: limiter %s blocks keys, and waits for nobody: leave it "+
				"out, and ask again after retry_after_ms", body.WaitMS, body.Limiter))
		}
		d, err = wait(r.Context(), limiter, request, time.Duration(body.WaitMS)*time.Millisecond)
		if errors.Is(err, errors.ErrUnsupported) { // also by the limit of a rule
			return invalid("wait_ms", fmt.Sprintf("is %d: limiter %s has no line for this key: only limits that are "+
				"no window of the calendar have one, with the strategy token_bucket, upsert or warm_up",
				body.WaitMS, body.Limiter))
		}
	} else {
		d, err = limiter.Do(r.Context(), request)
	}
	if p := limiter.problem(&request, &d, err); p != nil {
		return p
	}
	writeAnswer(w, d.Allowed, denied, d.RetryAfter, NewDecision(d))
	return nil
}

// writeAnswer writes a decision, or those about a group. A denial has the status denied.
func writeAnswer(w http.ResponseWriter, allowed bool, denied int, retryAfter time.Duration, body any) {
	status := http.StatusOK
	if !allowed {
		status = denied
		setRetryAfter(w, retryAfter)
	}
	writeJSON(w, status, "application/json", body)
}

// wait waits in line for the tokens. If they come too late, or on_error denies them, that is a denial.
func wait(ctx context.Context, limiter limiter, r pglimit.Request, longest time.Duration) (pglimit.Decision, error) {
	d, err := limiter.Do(ctx, pglimit.Request{Limiter: r.Limiter, Key: r.Key, Tokens: r.Tokens, MaxWait: longest})
	if errors.Is(err, pglimit.ErrWaitTooLong) || d.Source == pglimit.FromFallback {
		err = nil
	}
	return d, err
}

// allowAll takes for all of the requests or for none. The limiter of the first one asks.
func (s *Server) allowAll(w http.ResponseWriter, r *http.Request, t *Token, list []ask, denied int) *problem {
	requests := make([]pglimit.Request, len(list))
	var first limiter
	for i := range list {
		at := requestAt(i)
		l, request, limit, p := s.request(r.Context(), t, &list[i], false)
		if p != nil {
			return p.in(at)
		}
		if i == 0 {
			first = l
		}
		switch {
		case request.ID != "":
			return invalid("id", "goes with a request that is decided by itself, not with all").in(at)
		case l.blocks():
			return invalid("limiter", fmt.Sprintf("is %q, which blocks keys and goes with no others: ask it first "+
				"and, if it has allowed, for the others with all; if these are denied, refund it",
				l.Config().Name)).in(at)
		case l.Strategy() != first.Strategy():
			return invalid("limiter", fmt.Sprintf("is %q, with the strategy %s, and the first is %q, with %s: all "+
				"must have one strategy",
				list[i].Limiter, l.Strategy().Name(), list[0].Limiter, first.Strategy().Name())).in(at)
		}
		request.Limit, request.Durability = limit, l.config.Durability // not those of the first
		requests[i] = request
	}
	g, err := first.DoAll(r.Context(), requests...)
	if err != nil {
		var sent pglimit.Limit // of the client, which cannot be kept
		for i := range list {
			if limit := new(pglimit.LimitError); list[i].Limit != nil && errors.As(err, &limit) &&
				limit.Limit == requests[i].Limit {
				sent = limit.Limit
			}
		}
		return problemOfLimit(err, sent)
	}
	writeAnswer(w, g.Allowed, denied, g.RetryAfter, NewGroup(g))
	return nil
}

// takeEach decides each of the requests by itself. If one is not valid, none is decided.
func (s *Server) takeEach(w http.ResponseWriter, r *http.Request, t *Token, list []ask, peek bool) *problem {
	type call struct { // of one limiter
		limiter  limiter
		requests []pglimit.Request
		indexes  []int // of the requests in list
	}
	calls := make(map[string]*call)
	for i := range list {
		l, request, _, p := s.request(r.Context(), t, &list[i], peek)
		if p != nil {
			return p.in(requestAt(i))
		}
		name := l.Config().Name
		if calls[name] == nil {
			calls[name] = &call{limiter: l}
		}
		c := calls[name]
		c.requests, c.indexes = append(c.requests, request), append(c.indexes, i)
	}
	answers, problems := make([]any, len(list)), make([]*problem, len(list))
	var under sync.WaitGroup
	for _, c := range calls {
		under.Go(func() {
			decided, errs := doEach(r.Context(), c.limiter, c.requests)
			for n, i := range c.indexes {
				if p := c.limiter.problem(&c.requests[n], &decided[n], errs[n]); p != nil {
					problems[i] = p.in(requestAt(i))
					answers[i] = failure{list[i].Limiter, list[i].Key, problems[i]}
				} else {
					answers[i] = NewDecision(decided[n])
				}
			}
		})
	}
	under.Wait()
	if slices.Contains(problems, nil) { // else the tokens that were taken would be lost to the client
		writeJSON(w, http.StatusOK, "application/json", decisions{answers})
		return nil
	}
	return problems[0]
}

// doEach is Limiter.DoEach with an error, or nil, for each request.
func doEach(ctx context.Context, l limiter, requests []pglimit.Request) ([]pglimit.Decision, []error) {
	decided, err := l.DoEach(ctx, requests...)
	errs := make([]error, len(requests))
	var one *pglimit.IndexError
	if decided == nil { // one of them is not valid, and none was sent
		errors.As(err, &one)
		return make([]pglimit.Decision, len(requests)), slices.Repeat([]error{one.Err}, len(requests))
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			errors.As(err, &one)
			errs[one.Index] = one.Err
		}
	}
	return decided, errs
}
