package combine

import (
	"math"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// batch is what one call answers: the waiters, in order of arrival, and the requests
// that their units are combined into.
type batch struct {
	call    *wait.Call
	patient bool // the call waits for held rows as long as it takes
	single  bool // the rule is rate.Apart: requests for one bucket stay as they are
	waiters []*waiter

	later  []*waiter            // left for the next batch, because this one has other limits for their buckets
	closed map[rate.Bucket]bool // their buckets

	requests []rate.Request
	groups   int
	slots    map[rate.Bucket]int // the last request of each bucket
	leftOver []int64             // how many of each request's granted tokens no caller has got yet

	comeAgain bool // nobody was denied: those who were answered may ask again at once
	unclaimed bool // tokens were granted to a caller who has left
	refunds   []rate.Refund
}

// few requests are searched faster one by one than by the map.
const few = 8

func (b *batch) reset() {
	clear(b.waiters)
	clear(b.later)
	clear(b.refunds)
	b.call = nil
	b.waiters, b.later, b.refunds = b.waiters[:0], b.later[:0], b.refunds[:0]
	b.resetRequests()
}

func (b *batch) resetRequests() {
	clear(b.closed)
	clear(b.requests) // or their strings would stay in memory
	clear(b.slots)
	b.unclaimed, b.groups = false, 0
	b.requests, b.leftOver = b.requests[:0], b.leftOver[:0]
}

// combine makes requests of the waiters' units. Callers who have left are dropped, and not charged.
func (b *batch) combine() {
	b.resetRequests()
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool { return w.Left() || !b.add(w) })
}

// add makes the waiter's unit a part of the batch. Requests for one bucket become one if they follow one another,
// differ in nothing but Tokens and Durability, and are not a peek and a take: the order of a bucket's requests is
// kept. Groups stay as they are, and so do requests by a rule that is rate.Apart.
//
// A call has one limit for each bucket. From the first waiter on that asks for a bucket under
// another limit, those of that bucket are left for the next batch, and add returns false.
func (b *batch) add(w *waiter) bool {
	if !b.agrees(w) {
		b.postpone(w)
		return false
	}
	if isGroup(w.Request) {
		b.groups++
	} else if !b.single && b.merge(w) {
		return true
	}
	w.slot = len(b.requests)
	for _, r := range w.Request {
		r.Impatient = !b.patient
		if r.Group != 0 {
			r.Group = b.groups
		}
		if b.slots != nil {
			b.slots[r.Bucket()] = len(b.requests)
		}
		b.requests = append(b.requests, r)
	}
	return true
}

// agrees says whether the unit's buckets have the limits that they have in the batch.
func (b *batch) agrees(w *waiter) bool {
	for i := range w.Request {
		r := &w.Request[i]
		slot, same := b.find(r.Bucket())
		if same && b.requests[slot].Limit != r.Limit || len(b.closed) > 0 && b.closed[r.Bucket()] {
			return false
		}
	}
	return true
}

// merge makes the waiter's request a part of the last one for its bucket, if that is alike.
func (b *batch) merge(w *waiter) bool {
	r := &w.Request[0]
	slot, same := b.find(r.Bucket())
	if !same {
		return false
	}
	last := &b.requests[slot]
	alike := *last
	alike.Tokens, alike.Durability, alike.Impatient = r.Tokens, r.Durability, r.Impatient
	if alike != *r || (last.Tokens == 0) != (r.Tokens == 0) || last.Tokens > math.MaxInt64-r.Tokens {
		return false
	}
	last.Tokens += r.Tokens
	last.Durability = max(last.Durability, r.Durability)
	w.slot = slot
	return true
}

// postpone leaves the waiter for the next batch, and all that follow it for its buckets.
func (b *batch) postpone(w *waiter) {
	if b.closed == nil {
		b.closed = make(map[rate.Bucket]bool)
	}
	for i := range w.Request {
		b.closed[w.Request[i].Bucket()] = true
	}
	b.later = append(b.later, w)
}

// find returns the last request for the bucket.
func (b *batch) find(of rate.Bucket) (slot int, found bool) {
	if len(b.requests) > few && len(b.slots) == 0 {
		if b.slots == nil {
			b.slots = make(map[rate.Bucket]int, len(b.waiters))
		}
		for i := range b.requests {
			b.slots[b.requests[i].Bucket()] = i
		}
	}
	if len(b.slots) > 0 {
		slot, found = b.slots[of]
		return slot, found
	}
	for slot := len(b.requests) - 1; slot >= 0; slot-- {
		if b.requests[slot].Bucket() == of {
			return slot, true
		}
	}
	return 0, false
}

// fail gives the error to all callers. It returns how many tokens may have been taken for
// callers who have left, or made the call themselves until their context ended.
func (b *batch) fail(err error) (lost int64) {
	for _, w := range b.waiters {
		tokens, ended := w.tokens(), w.ctx.Err() != nil
		heard := w.Answer(nil, err)
		if heard {
			b.call.Waiting.Add(-1)
		}
		if ended || !heard {
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
		var heard bool
		if isGroup(w.Request) {
			heard = b.shareGroup(w, decisions)
		} else {
			heard = b.shareOne(w, decisions, rule)
		}
		if heard {
			b.call.Waiting.Add(-1)
		}
	}
}

func (b *batch) shareGroup(w *waiter, decisions []rate.Decision) (heard bool) {
	from, to := w.slot, w.slot+len(w.Request)
	if heard = w.answer(decisions[from:to]...); heard {
		clear(b.leftOver[from:to])
	}
	return heard
}

func (b *batch) shareOne(w *waiter, decisions []rate.Decision, rule rate.Rule) (heard bool) {
	r, slot := &w.Request[0], w.slot
	tokens := r.Tokens
	if tokens > b.leftOver[slot] && b.unclaimed {
		slot = b.unclaimedBefore(slot, r, decisions, rule)
	}
	answer, peek := decisions[slot], tokens == 0
	tokens = min(tokens, b.leftOver[slot])
	tokens -= tokens % max(r.Unit, 1) // whole units, or nothing
	switch {
	case peek:
	case tokens > 0:
		answer = part(rule, answer, b.leftOver[slot]-tokens, &b.requests[slot], r)
		answer.Granted = tokens
	default:
		answer.Allowed, answer.Granted, answer.Delay, b.comeAgain = false, 0, 0, false
	}
	if heard = w.answer(answer); heard {
		b.leftOver[slot] -= tokens
	} else if tokens > 0 {
		b.unclaimed = true
	}
	return heard
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
	others, all := b.leftOver[slot]-r.Tokens, &b.requests[slot]
	switch {
	case b.single && others > 0: // it is not divided
		return false
	case r.Unit < r.Tokens && r.Unit != all.Unit: // who would be given less, perhaps, by himself
		return false
	}
	return others >= 0 && part(rule, decisions[slot], others, all, r).Delay <= r.Ahead
}

// part returns the decision for r, one of several requests that were sent together as all,
// from the decision d for all. others tokens went to requests after r: the result shows the
// bucket before they got them, and r's own tokens are due that much earlier.
func part(rule rate.Rule, d rate.Decision, others int64, all, r *rate.Request) rate.Decision {
	if others > 0 || r.Unit != all.Unit {
		d.Limit = r.Limit
		d = rule.Later(d, all.Unit, r.Unit, 0, others)
	}
	d.Allowed, d.Granted = true, r.Tokens
	return d
}

// unused makes refunds of the tokens that are left over.
func (b *batch) unused(decisions []rate.Decision) []rate.Refund {
	for slot, left := range b.leftOver {
		if left > 0 {
			refund := rate.Refund{Request: b.requests[slot], At: decisions[slot].At, Delay: decisions[slot].Delay}
			refund.Tokens, refund.Unit, refund.Group = left, min(left, refund.Unit), 0
			b.refunds = append(b.refunds, refund)
		}
	}
	if b.single {
		slices.Reverse(b.refunds) // the last grant first: then the one before it is the last
	}
	return b.refunds
}
