package strategytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// twin is pglimittest.Memory, which does what the strategy has done, at the same time. Its answers must be
// the same: to the token and, if the strategy fills as a token bucket, to the microsecond.
type twin struct {
	*suite
	session rate.Session // the strategy's
	watched *watched     // the session, if it is one
	memory  *pglimittest.Strategy
	at      time.Time // the clock of memory: the time of the last answer
	log     map[rate.Bucket][]string
	past
}

// past is what a rollback takes back.
type past struct {
	done   []deed // in memory
	grants []rate.Refund
	held   []rate.LeaseRequest // leases, as their Settle
}

type deed struct {
	at time.Time
	do func()
}

func (p past) copy() past {
	return past{slices.Clone(p.done), slices.Clone(p.grants), slices.Clone(p.held)}
}

// remember that past only.
func (t *twin) remember(p past) {
	t.memory, t.past = pglimittest.MemoryOn(func() time.Time { return t.at }), past{nil, p.grants, p.held}
	now := t.at
	for _, d := range p.done {
		t.inMemory(d.at, d.do)
	}
	t.at = now
}

// inMemory does what the strategy did at that time.
func (t *twin) inMemory(at time.Time, do func()) {
	t.done = append(t.done, deed{at, do})
	t.at = at
	do()
}

func (t *twin) note(b rate.Bucket, format string, args ...any) {
	t.log[b] = append(t.log[b], fmt.Sprintf(format, args...))
}

// differs ends the test, and shows what led to it.
func (t *twin) differs(b rate.Bucket, want any) {
	t.Helper()
	log := t.log[b]
	t.Fatalf("%q\n%s\n\t   want %+v", b, strings.Join(log[max(0, len(log)-12):], "\n"), want)
}

// decides compares a decision. A request of a group is decided by itself here. If it is untimed, only when to
// come back may differ.
func (t *twin) decides(r rate.Request, got rate.Decision, untimed bool) {
	t.Helper()
	t.note(r.Bucket(), "asks %+v\n\tand got %+v", r, got)
	asked, at := r, got.At
	if asked.Group = 0; r.Group != 0 && got.Granted == 0 {
		asked.Tokens, asked.Ahead = 0, 0
	}
	if r.ID != "" && at.Before(t.at) { // an answer that is given again
		at = t.at
	}
	var want []rate.Decision
	var err error
	t.inMemory(at, func() { want, err = t.memory.Take(t.Context(), nil, []rate.Request{asked}) })
	if err != nil {
		t.differs(r.Bucket(), err)
	}
	if untimed {
		got.RetryAfter, got.ResetAfter = want[0].RetryAfter, want[0].ResetAfter
	}
	t.same(r.Bucket(), got, want[0])
	if got.Granted > 0 && r.ID == "" {
		r.Tokens, r.Unit = got.Granted, min(got.Granted, r.Limit.Burst)
		r.Ahead, r.Group, r.Block = 0, 0, nil
		t.grants = append(t.grants, rate.Refund{Request: r, At: got.At, Delay: got.Delay})
	}
}

// same compares two decisions.
func (t *twin) same(b rate.Bucket, got, want rate.Decision) {
	t.Helper()
	shown := want
	for _, d := range []struct{ got, want *time.Duration }{{&got.RetryAfter, &want.RetryAfter}, {&got.ResetAfter, &want.ResetAfter}} {
		if off := *d.got - *d.want; off.Abs() <= time.Microsecond && *d.want > 0 { // it is rounded up to the clock's microsecond
			*d.got = *d.want
		}
	}
	if !t.fillsAsATokenBucket() {
		got.RetryAfter, got.ResetAfter, got.Delay = want.RetryAfter, want.ResetAfter, want.Delay
	}
	for _, limit := range []*rate.Limit{&got.Limit, &want.Limit} {
		if limit.Tokens > 0 { // however it is written
			*limit = rate.Every(limit.Token()).WithBurst(limit.Burst)
		}
	}
	if got.ResetAfter == 0 { // what a full bucket has may be gone: see hasRow
		got.HasRow = want.HasRow
	}
	if got != want {
		t.differs(b, shown)
	}
}

// isBlocked says whether the key of the request is, before that is decided.
func (t *twin) isBlocked(r rate.Request, at time.Time) bool {
	r.Tokens, t.at = 0, at
	d, err := t.memory.Take(t.Context(), nil, []rate.Request{r})
	return err == nil && d[0].Blocked
}

// givenBack compares the bucket after a refund, which the strategy made after before: when it is full again shows
// when that was.
func (t *twin) givenBack(r rate.Refund, before time.Time) {
	t.Helper()
	t.note(r.Bucket(), "gives back %+v", r)
	look := r.Request
	look.Tokens, look.Unit = 0, 1
	got := t.takeAll(t.session, look)[0]
	// later is how much later than at it would have left what the strategy did.
	later := func(at time.Time) time.Duration {
		t.inMemory(at, func() { _ = t.memory.GiveBack(t.Context(), nil, []rate.Refund{r}) })
		t.at = got.At
		want, err := t.memory.Take(t.Context(), nil, []rate.Request{look})
		if err != nil {
			t.differs(r.Bucket(), err)
		}
		return (got.ResetAfter - want[0].ResetAfter).Round(time.Microsecond)
	}
	undo := func() {
		t.done = t.done[:len(t.done)-1]
		t.remember(t.past)
	}
	at := before
	for by := later(at); by > 0 && !at.Add(by).After(got.At); by = later(at) {
		undo()
		at = at.Add(by)
	}
	// If nothing was left to give back, the last nanoseconds of it may have been left in memory, which ResetAfter,
	// rounded up, does not show.
	if next := at.Add(time.Microsecond); !next.After(got.At) {
		undo()
		if later(next) < 0 {
			undo()
			later(at)
		}
	}
	t.decides(look, got, false)
}

// leased compares a lease, and what it says of the bucket.
func (t *twin) leased(r rate.LeaseRequest, got rate.Lease) {
	t.Helper()
	b := rate.Bucket{Limiter: r.Limiter, Key: r.Key}
	t.note(b, "leases %+v\n\tand got %+v", r, got)
	var want rate.Lease
	var err error
	t.inMemory(got.At, func() { want, err = t.memory.Lease(t.Context(), nil, r) })
	if got.Tokens != want.Tokens || got.At != want.At || t.fillsAsATokenBucket() && !got.Until.Equal(want.Until) || err != nil {
		t.differs(b, want)
	}
	t.same(b, got.Left, want.Left)
	if got.Tokens > 0 {
		held := r
		held.Settle = got
		t.held = append(t.held, held)
	}
}

// refuses compares the error of a call of Take: that of memory is alike, or the strategy's Check of a request.
func (t *twin) refuses(err error, requests []rate.Request) {
	t.Helper()
	for i := range requests {
		if alike(err, t.strategy.Check(&requests[i])) {
			return
		}
	}
	if _, want := t.memory.Take(t.Context(), nil, requests); !alike(err, want) {
		t.Fatalf("%+v:\nthe error is %v\n        want %v", requests, err, want)
	}
}

// alike says that two errors name the same field, or that the like is not supported.
func alike(a, b error) bool {
	return a != nil && b != nil && field(a) == field(b) && errors.Is(a, errors.ErrUnsupported) == errors.Is(b, errors.ErrUnsupported)
}

func field(err error) string {
	if request := (*rate.RequestError)(nil); errors.As(err, &request) {
		return request.Field
	}
	if limit := (*rate.LimitError)(nil); errors.As(err, &limit) {
		return limit.Field
	}
	if block := (*rate.BlockError)(nil); errors.As(err, &block) {
		return block.Field
	}
	return ""
}
