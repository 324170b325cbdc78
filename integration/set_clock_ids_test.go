package integration

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// once takes with an ID.
func (b setClock) once(id string, l pglimit.Limit, tokens int64, ttl time.Duration) pglimit.Decision {
	b.Helper()
	r := b.request(l, tokens)
	r.ID, r.IDTTL = id, ttl
	return b.ask(r)
}

// kept asks with the ID of a grant once more: at the first of the times it must get the same answer, and at the
// other, a microsecond later, a grant of its own.
func (b setClock) kept(id string, l pglimit.Limit, first pglimit.Decision, until time.Duration) {
	b.Helper()
	b.at(until - time.Microsecond)
	if d := b.once(id, l, first.Granted, time.Second); d != first {
		b.Errorf("a microsecond before %v: %+v, was %+v", until, d, first)
	}
	b.at(until)
	if d := b.once(id, l, first.Granted, time.Second); d.Granted != first.Granted || !d.At.Equal(b.time(until)) {
		b.Errorf("at %v: %+v, want a grant of its own", until, d)
	}
}

func idsOnSetClock() map[string]func(b setClock) {
	const s = time.Second
	hourly := pglimit.Every(time.Hour).WithBurst(100)
	return map[string]func(b setClock){
		"an ID is kept for its time": func(b setClock) {
			b.kept("id", hourly, b.once("id", hourly, 3, 10*s), 10*s)
			b.has(hourly, 94, 6*time.Hour-10*s)
		},
		"a denial counts what is leased": func(b setClock) {
			b.take(perSecond, 5)
			b.lease(perSecond, 4, time.Hour)
			d := b.once("id", perSecond, 3, 10*s)
			if want := b.peek(perSecond, 3); d != want || d.Remaining != 1 || d.RetryAfter != 2*s {
				b.Errorf("%+v: want 1 token, and 3 in 2s, as a peek says: %+v", d, want)
			}
		},
		"the answer that is given again counts what was leased": func(b setClock) {
			b.take(perSecond, 2)
			b.lease(perSecond, 4, time.Hour)
			first := b.once("id", perSecond, 3, 10*s)
			if first.Remaining != 1 || first.ResetAfter != time.Hour+4*s {
				b.Errorf("%+v", first)
			}
			b.kept("id", perSecond, first, 10*s)
		},
		"a reused ID is kept for its new time": func(b setClock) {
			b.once("id", hourly, 1, 10*s)
			b.at(10 * s)
			b.kept("id", hourly, b.once("id", hourly, 1, 100*s), 110*s)
		},
		"a reused ID is kept for its new, shorter time": func(b setClock) {
			b.once("id", hourly, 1, 100*s)
			b.at(100 * s)
			b.kept("id", hourly, b.once("id", hourly, 1, 10*s), 110*s)
		},
		"a reused ID has its new answer": func(b setClock) {
			b.once("id", hourly, 1, 10*s)
			b.at(10 * s)
			b.lease(tenPer, 4, time.Hour)
			first := b.once("id", tenPer, 2, 100*s)
			if first.Granted != 2 || first.Remaining != 4 {
				b.Errorf("%+v", first)
			}
			b.kept("id", tenPer, first, 110*s)
		},
		"a reused ID has its new answer, without a lease": func(b setClock) {
			lease := b.lease(tenPer, 4, time.Hour)
			b.once("id", tenPer, 2, 10*s)
			b.settle(tenPer, lease, 0)
			b.at(10 * s)
			first := b.once("id", hourly, 1, 100*s)
			if first.Remaining != 99 || first.ResetAfter != time.Hour {
				b.Errorf("%+v", first)
			}
			b.kept("id", hourly, first, 110*s)
		},
		"after a step back an ID is kept for its time from the next request on": func(b setClock) {
			b.at(time.Hour)
			first := b.once("id", hourly, 1, 100*s)
			b.at(5 * s)
			if d := b.once("id", hourly, 1, time.Minute); d != first {
				b.Errorf("%+v, was %+v", d, first)
			}
			b.kept("id", hourly, first, 105*s)
		},
		"after a step back a reused ID is kept for its new time": func(b setClock) {
			b.once("id", hourly, 1, 10*s)
			b.at(time.Hour)
			first := b.once("id", hourly, 1, 100*s)
			b.at(5 * s)
			b.once("id", hourly, 1, 100*s)
			b.kept("id", hourly, first, 105*s)
		},
		"after a step back each ID is kept from its own next request on": func(b setClock) {
			b.at(time.Hour)
			first := b.once("other", hourly, 1, 100*s)
			b.once("id", hourly, 1, 100*s)
			b.at(0)
			b.once("id", hourly, 1, 100*s)
			b.at(5 * s)
			b.once("other", hourly, 1, 100*s)
			b.kept("other", hourly, first, 105*s)
		},
		"an ID that is 10 ms ahead is no step": func(b setClock) {
			b.at(10 * time.Millisecond)
			first := b.once("id", hourly, 1, 10*s)
			b.at(0)
			b.once("id", hourly, 1, 10*s)
			b.kept("id", hourly, first, 10*s+10*time.Millisecond)
		},
		"an ID is its limiter's": func(b setClock) {
			b.once("id", hourly, 1, 10*s)
			for _, limiter := range []string{"a test", "test 2"} {
				r := b.request(hourly, 2)
				r.ID, r.IDTTL, r.Limiter = "id", 10*s, limiter
				if d := b.ask(r); d.Granted != 2 || d.Remaining != 98 {
					b.Errorf("%s: %+v", limiter, d)
				}
			}
		},
	}
}
