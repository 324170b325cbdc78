package combine

import (
	"math"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// batch is what one call answers: the waiters, in order of arrival, and the requests
// that they are combined into.
type batch struct {
	flight  *flight.Flight
	waiters []*waiter

	later  []*waiter            // left for the next batch, because this one has other limits for their buckets
	closed map[rate.Bucket]bool // their buckets

	requests []rate.Request
	slots    map[rate.Bucket]int // the last request of each bucket
	leftOver []int64             // how many of each request's granted tokens no caller has got yet

	denied    bool // at least one caller was denied
	unclaimed bool // tokens were granted to a caller who has left
	refunds   []rate.Refund
}

// few requests are searched faster one by one than by the map.
const few = 8

func (b *batch) reset() {
	clear(b.waiters)
	clear(b.later)
	clear(b.closed)
	clear(b.requests) // or their strings would stay in memory
	clear(b.refunds)
	clear(b.slots)
	b.flight = nil
	b.denied, b.unclaimed = false, false
	b.waiters, b.later, b.requests, b.leftOver, b.refunds = b.waiters[:0], b.later[:0], b.requests[:0], b.leftOver[:0], b.refunds[:0]
}

// combine makes requests of the waiters. Callers who have left are dropped, and not charged.
func (b *batch) combine(impatient bool) {
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool { return w.Left() || !b.add(w, impatient) })
}

// add makes the waiter's request a part of the batch. Requests for one bucket become one if they
// follow one another, have the same Unit and Ahead, and are not a peek and a take: the order of a
// bucket's requests is kept.
//
// A call has one limit for each bucket. From the first waiter on that asks for a bucket under
// another limit, those of that bucket are left for the next batch, and add returns false.
func (b *batch) add(w *waiter, impatient bool) bool {
	r, bucket := &w.Request, w.Request.Bucket()
	slot, same := b.find(bucket)
	if same {
		last := &b.requests[slot]
		if last.Limit != r.Limit || b.closed[bucket] {
			b.postpone(w)
			return false
		}
		if last.Unit == r.Unit && last.Ahead == r.Ahead && (last.Tokens == 0) == (r.Tokens == 0) && last.Tokens <= math.MaxInt64-r.Tokens {
			last.Tokens += r.Tokens
			last.Durability = max(last.Durability, r.Durability)
			w.slot = slot
			return true
		}
	}
	w.slot = len(b.requests)
	b.requests = append(b.requests, *r)
	b.requests[w.slot].Impatient = impatient
	if b.slots != nil {
		b.slots[bucket] = w.slot
	}
	return true
}

// postpone leaves the waiter for the next batch, and all that follow it for its bucket.
func (b *batch) postpone(w *waiter) {
	if b.closed == nil {
		b.closed = make(map[rate.Bucket]bool)
	}
	b.closed[w.Request.Bucket()] = true
	b.later = append(b.later, w)
}

// find returns the last request for the bucket.
func (b *batch) find(bucket rate.Bucket) (slot int, found bool) {
	if b.slots == nil && len(b.requests) > few {
		b.slots = make(map[rate.Bucket]int, len(b.waiters))
		for i := range b.requests {
			b.slots[b.requests[i].Bucket()] = i
		}
	}
	if b.slots != nil {
		slot, found = b.slots[bucket]
		return slot, found
	}
	for slot := len(b.requests) - 1; slot >= 0; slot-- {
		if b.requests[slot].Bucket() == bucket {
			return slot, true
		}
	}
	return 0, false
}

// fail gives the error to all callers. It returns how many tokens may have been taken for
// callers who have left, and so do not get the error.
func (b *batch) fail(err error) (lost int64) {
	for _, w := range b.waiters {
		if tokens := w.Request.Tokens; w.Answer(rate.Decision{}, err) {
			b.flight.Waiting.Add(-1)
		} else {
			lost += tokens
		}
	}
	return lost
}

// share answers the callers with their parts of the grants, in order of arrival. Tokens of
// callers who have left go to later callers, or are left over.
func (b *batch) share(decisions []rate.Decision, rule rate.Rule) {
	for i := range decisions {
		b.leftOver = append(b.leftOver, decisions[i].Granted)
	}
	for _, w := range b.waiters {
		slot, tokens := w.slot, w.Request.Tokens
		if tokens > b.leftOver[slot] && b.unclaimed {
			slot = b.unclaimedBefore(slot, &w.Request, decisions, rule)
		}
		answer, peek := decisions[slot], tokens == 0
		tokens = min(tokens, b.leftOver[slot])
		tokens -= tokens % max(w.Request.Unit, 1) // whole units, or nothing
		switch {
		case peek:
		case tokens > 0:
			answer = part(rule, answer, &b.requests[slot], &w.Request, b.leftOver[slot]-tokens)
			answer.Granted = tokens
		default:
			answer.Allowed, answer.Granted, answer.Delay, b.denied = false, 0, 0, true
		}
		if w.Answer(answer, nil) {
			b.leftOver[slot] -= tokens
			b.flight.Waiting.Add(-1)
		} else if tokens > 0 {
			b.unclaimed = true
		}
	}
}

// part returns the decision for r, one of the callers who share the decision about all. The bucket reads
// as before those behind r got their tokens, others in number, and r's own are due that much earlier.
func part(rule rate.Rule, d rate.Decision, all, r *rate.Request, others int64) rate.Decision {
	if others > 0 || r.Unit != all.Unit {
		d.Limit = r.Limit
		d = rule.Later(d, all.Unit, r.Unit, 0, others)
	}
	d.Allowed, d.Granted = true, r.Tokens
	return d
}

// unclaimedBefore finds an earlier request for the same bucket that has enough tokens left over
// from callers who have left. If there is none, it returns the slot itself.
func (b *batch) unclaimedBefore(slot int, r *rate.Request, decisions []rate.Decision, rule rate.Rule) int {
	for earlier := range slot {
		if b.requests[earlier].Bucket() == r.Bucket() && b.fits(earlier, r, decisions, rule) {
			return earlier
		}
	}
	return slot
}

// fits says whether the tokens left over in the slot are enough for the request, and not due later
// than it may wait.
func (b *batch) fits(slot int, r *rate.Request, decisions []rate.Decision, rule rate.Rule) bool {
	others := b.leftOver[slot] - r.Tokens
	return others >= 0 && part(rule, decisions[slot], &b.requests[slot], r, others).Delay <= r.Ahead
}
