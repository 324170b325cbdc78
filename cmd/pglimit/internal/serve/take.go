package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

const (
	// maxRequests of one call.
	maxRequests = 1000

	// maxWait for tokens: connections that are quiet for longer are cut by proxies.
	maxWait = time.Minute
)

// allow answers /v1/allow. A denial is 200 too, unless the caller asks for another status.
func (s *Server) allow(w http.ResponseWriter, r *http.Request) *problem {
	denied, p := statusOfDenial(r)
	if p != nil {
		return p
	}
	var body asks
	if p := body.read(w, r); p != nil {
		return p
	}
	switch {
	case body.requests == nil:
		return s.allowOne(w, r, &body, denied)
	case body.All:
		return s.allowAll(w, r, body.requests, denied)
	}
	return s.takeEach(w, r, body.requests, false)
}

// peek answers /v1/peek. Whether the tokens are there is no more than a fact: it is always 200.
func (s *Server) peek(w http.ResponseWriter, r *http.Request) *problem {
	var body asks
	if p := body.read(w, r); p != nil {
		return p
	}
	switch {
	case body.WaitMS != 0:
		return invalid("wait_ms", "goes with /v1/allow only: a peek does not wait")
	case body.All:
		return invalid("all", "goes with /v1/allow only: of peeks, each is answered by itself")
	case body.requests != nil:
		return s.takeEach(w, r, body.requests, true)
	}
	limiter, request, p := s.request(&body.ask, true)
	if p != nil {
		return p
	}
	d, err := limiter.Do(r.Context(), request)
	if err != nil {
		return problemOf(err)
	}
	writeJSON(w, http.StatusOK, "application/json", newDecision(d))
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
		return invalid("requests", fmt.Sprintf("are %d: at most %d are allowed", len(b.Each), maxRequests))
	case b.Each == nil && b.All:
		return invalid("all", "goes with requests only")
	case b.WaitMS < 0 || b.WaitMS > maxWait.Milliseconds():
		return invalid("wait_ms", fmt.Sprintf("is %d: it must be from 0 to %d", b.WaitMS, maxWait.Milliseconds()))
	case b.WaitMS != 0 && (b.Each != nil || b.ID != "" || b.Limit != ""):
		return invalid("wait_ms", "goes without requests, id and limit")
	}
	for i, text := range b.Each {
		b.requests = append(b.requests, ask{})
		if p := decode(text, &b.requests[i]); p != nil {
			return p.in(requestAt(i))
		}
	}
	return nil
}

// request that is asked for, complete and valid.
func (s *Server) request(a *ask, peek bool) (limiter, pglimit.Request, *problem) {
	l, p := s.limiter(a.Limiter)
	if p != nil {
		return l, pglimit.Request{}, p
	}
	r := pglimit.Request{Limiter: a.Limiter, Key: a.Key, Limit: l.Limit(), Tokens: 1, ID: a.ID}
	if a.Tokens != nil {
		r.Tokens = *a.Tokens
	}
	if r.Tokens < 1 {
		return l, r, invalid("tokens", fmt.Sprintf("is %d: it must be at least 1 (/v1/peek looks without taking)", r.Tokens))
	}
	r.Unit = r.Tokens
	if peek {
		if a.ID != "" {
			return l, r, invalid("id", "goes with /v1/allow only: a peek is not charged")
		}
		r.Tokens = 0
	}
	if a.ID != "" {
		if l.blocks() {
			return l, r, invalid("id", fmt.Sprintf("is %q: limiter %s blocks keys, and takes none: leave it out (what is sent again is charged again), or ask a limiter without block", a.ID, a.Limiter))
		}
		if l.Strategy().Check(&pglimit.Request{Limit: l.Limit(), ID: a.ID}) != nil {
			return l, r, invalid("id", fmt.Sprintf("is %q: limiter %s must have the strategy token_bucket", a.ID, a.Limiter))
		}
	}
	if a.Limit != "" {
		var err error
		if r.Limit, err = pglimit.ParseLimit(a.Limit); err != nil {
			return l, r, invalid("limit", strings.TrimPrefix(bare(err), "limit "))
		}
		if err = l.Strategy().Check(&pglimit.Request{Limit: r.Limit}); err != nil {
			return l, r, problemOf(err)
		}
	}
	checked := r
	if r.ID != "" {
		checked.IDTTL = pglimit.MaxIDTTL // the Limiter's own is filled in by it
	}
	if err := checked.Validate(); err != nil {
		return l, r, problemOf(err)
	}
	return l, r, nil
}

func (s *Server) allowOne(w http.ResponseWriter, r *http.Request, body *asks, denied int) *problem {
	limiter, request, p := s.request(&body.ask, false)
	if p != nil {
		return p
	}
	var d pglimit.Decision
	var err error
	if body.WaitMS > 0 {
		if limiter.blocks() {
			return invalid("wait_ms", fmt.Sprintf("is %d: limiter %s blocks keys, and waits for nobody: leave it out, and ask again after retry_after_ms", body.WaitMS, body.Limiter))
		}
		if limiter.Strategy().Check(&pglimit.Request{Limit: limiter.Limit(), Ahead: 1}) != nil {
			return invalid("wait_ms", fmt.Sprintf("is %d: limiter %s must have the strategy token_bucket or upsert", body.WaitMS, body.Limiter))
		}
		d, err = wait(r.Context(), limiter, request, time.Duration(body.WaitMS)*time.Millisecond)
	} else {
		d, err = limiter.Do(r.Context(), request)
	}
	if err != nil {
		return problemOf(err)
	}
	status := http.StatusOK
	if !d.Allowed {
		status = denied
		setRetryAfter(w, d.RetryAfter)
	}
	writeJSON(w, status, "application/json", newDecision(d))
	return nil
}

// wait in line for the tokens. If they come too late, or on_error denies them, that is a denial.
func wait(ctx context.Context, limiter limiter, r pglimit.Request, longest time.Duration) (pglimit.Decision, error) {
	d, err := limiter.Do(ctx, pglimit.Request{Key: r.Key, Tokens: r.Tokens, MaxWait: longest})
	if errors.Is(err, pglimit.ErrWaitTooLong) || d.Source == pglimit.FromFallback {
		err = nil
	}
	return d, err
}

// allowAll takes for all of the requests or for none. The limiter of the first one asks.
func (s *Server) allowAll(w http.ResponseWriter, r *http.Request, list []ask, denied int) *problem {
	requests := make([]pglimit.Request, len(list))
	var first limiter
	for i := range list {
		at := requestAt(i)
		l, request, p := s.request(&list[i], false)
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
			return invalid("limiter", fmt.Sprintf("is %q, which blocks keys and goes with no others: ask it first and, if it has allowed, for the others with all; if these are denied, refund it", l.Config().Name)).in(at)
		case l.Strategy() != first.Strategy():
			return invalid("limiter", fmt.Sprintf("is %q, with the strategy %s, and the first is %q, with %s: all must have one strategy",
				l.Config().Name, l.Strategy().Name(), first.Config().Name, first.Strategy().Name())).in(at)
		}
		request.Durability = l.config.Durability
		requests[i] = request
	}
	g, err := first.DoAll(r.Context(), requests...)
	if err != nil {
		return problemOf(err)
	}
	answer := group{Allowed: g.Allowed, RetryAfterMS: milliseconds(g.RetryAfter)}
	for _, d := range g.Decisions {
		answer.Decisions = append(answer.Decisions, newDecision(d))
	}
	status := http.StatusOK
	if !g.Allowed {
		status = denied
		setRetryAfter(w, g.RetryAfter)
	}
	writeJSON(w, status, "application/json", answer)
	return nil
}

// takeEach decides each of the requests by itself. If one is not valid, none is decided.
func (s *Server) takeEach(w http.ResponseWriter, r *http.Request, list []ask, peek bool) *problem {
	requests := make(map[limiterName][]pglimit.Request)
	indexes := make(map[limiterName][]int)
	for i := range list {
		l, request, p := s.request(&list[i], peek)
		if p != nil {
			return p.in(requestAt(i))
		}
		name := limiterName(l.Config().Name)
		requests[name], indexes[name] = append(requests[name], request), append(indexes[name], i)
	}
	answers, problems := make([]either, len(list)), make([]*problem, len(list))
	var calls sync.WaitGroup
	for name := range requests {
		calls.Go(func() {
			decided, failed := takeOf(r.Context(), s.limiters[string(name)], requests[name])
			for n, i := range indexes[name] {
				if failed[n] != nil {
					problems[i] = problemOf(failed[n]).in(requestAt(i))
					answers[i].failure = &failure{list[i].Limiter, list[i].Key, problems[i]}
					continue
				}
				d := newDecision(decided[n])
				answers[i].decision = &d
			}
		})
	}
	calls.Wait()
	if slices.Contains(problems, nil) { // else the tokens that were taken would be lost to the client
		writeJSON(w, http.StatusOK, "application/json", decisions{answers})
		return nil
	}
	return problems[0]
}

type limiterName string

// takeOf is Limiter.DoEach with an error, or nil, for each request.
func takeOf(ctx context.Context, l limiter, requests []pglimit.Request) ([]pglimit.Decision, []error) {
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
