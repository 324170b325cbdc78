package combine

import (
	"context"
	"math"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// batch is what one call answers: the waiters, in order of arrival, and the requests
// that they are combined into.
type batch struct {
	ctx      context.Context
	flight   *flight
	gathered int64 // waiters that were taken off the queue
	waiters  []*waiter

	requests []rate.Request
	slots    map[string]int // the last request of each key
	leftOver []int64        // how many of each request's granted tokens no caller has got yet

	denied    bool // at least one caller was denied
	unclaimed bool // tokens were granted to a caller who has left
	refunds   []rate.Refund
}

// few requests are searched faster one by one than by the map.
const few = 8

func (b *batch) reset() {
	clear(b.waiters)
	clear(b.requests) // or their strings would stay in memory
	clear(b.refunds)
	clear(b.slots)
	b.ctx, b.flight, b.gathered = nil, nil, 0
	b.denied, b.unclaimed = false, false
	b.waiters, b.requests, b.leftOver, b.refunds = b.waiters[:0], b.requests[:0], b.leftOver[:0], b.refunds[:0]
}

// combine makes requests of the waiters. Callers who have left are dropped, and not charged.
// Requests for one key become one if they follow one another, have the same Unit, and are not
// a peek and a take: the order of a key's requests is kept.
func (b *batch) combine(impatient bool) {
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool { return w.Left() })
	for _, w := range b.waiters {
		r := &w.Request
		slot, same := b.find(r.Key)
		if same {
			last := &b.requests[slot]
			if last.Unit == r.Unit && (last.Tokens == 0) == (r.Tokens == 0) && last.Tokens <= math.MaxInt64-r.Tokens {
				last.Tokens += r.Tokens
				last.Durability = max(last.Durability, r.Durability)
				w.slot = slot
				continue
			}
		}
		w.slot = len(b.requests)
		b.requests = append(b.requests, *r)
		b.requests[w.slot].Impatient = impatient
		if b.slots != nil {
			b.slots[r.Key] = w.slot
		}
	}
}

// find returns the last request for the key.
func (b *batch) find(key string) (slot int, found bool) {
	if b.slots == nil && len(b.requests) > few {
		b.slots = make(map[string]int, len(b.waiters))
		for i := range b.requests {
			b.slots[b.requests[i].Key] = i
		}
	}
	if b.slots != nil {
		slot, found = b.slots[key]
		return slot, found
	}
	for slot := len(b.requests) - 1; slot >= 0; slot-- {
		if b.requests[slot].Key == key {
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
			b.flight.waiting.Add(-1)
		} else {
			lost += tokens
		}
	}
	return lost
}

// share answers the callers with their parts of the grants, in order of arrival. Tokens of
// callers who have left go to later callers, or are left over.
func (b *batch) share(decisions []rate.Decision) {
	for i := range decisions {
		b.leftOver = append(b.leftOver, decisions[i].Granted)
	}
	for _, w := range b.waiters {
		slot, tokens := w.slot, w.Request.Tokens
		if tokens > b.leftOver[slot] && b.unclaimed {
			slot = b.unclaimedBefore(slot, tokens)
		}
		answer, peek := decisions[slot], tokens == 0
		tokens = min(tokens, b.leftOver[slot])
		tokens -= tokens % max(w.Request.Unit, 1) // whole units, or nothing
		switch {
		case peek:
		case tokens > 0:
			answer = answer.Before(b.leftOver[slot]-tokens, &b.requests[slot], &w.Request)
			answer.Granted = tokens
		default:
			answer.Allowed, answer.Granted, b.denied = false, 0, true
		}
		if w.Answer(answer, nil) {
			b.leftOver[slot] -= tokens
			b.flight.waiting.Add(-1)
		} else if tokens > 0 {
			b.unclaimed = true
		}
	}
}

// unclaimedBefore finds an earlier request for the same key that has that many tokens left over
// from callers who have left. If there is none, it returns the slot itself.
func (b *batch) unclaimedBefore(slot int, tokens int64) int {
	for earlier := range slot {
		if b.leftOver[earlier] >= tokens && b.requests[earlier].Key == b.requests[slot].Key {
			return earlier
		}
	}
	return slot
}
