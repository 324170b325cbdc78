package combine

import "github.com/pglimit/ratelimit/pglimit/rate"

// Tokens that were granted to callers who have left go to waiting callers, or back to the
// bucket.

// passOn gives tokens of callers who have left to callers who wait for the same bucket now, in
// order of arrival.
func (l *lane) passOn(b *batch, decisions []rate.Decision) {
	slots, rule := make(map[rate.Bucket]int), l.combiner.calls.Rule
	for slot, tokens := range b.leftOver {
		if tokens > 0 {
			slots[b.requests[slot].Bucket()] = slot
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := l.queue.first; w != nil && len(slots) > 0; {
		next := w.next
		if slot, wanted := slots[w.Request.Bucket()]; wanted {
			tokens := w.Request.Tokens
			lessDurable := b.requests[slot].Durability < w.Request.Durability
			if tokens == 0 || lessDurable || b.requests[slot].Limit != w.Request.Limit || !b.fits(slot, &w.Request, decisions, rule) {
				delete(slots, w.Request.Bucket()) // later waiters for this bucket must not overtake it
			} else {
				b.leftOver[slot] -= tokens
				l.queue.remove(w)
				l.combiner.Stats.PassedOn.Add(tokens)
				w.Answer(part(rule, decisions[slot], &b.requests[slot], &w.Request, b.leftOver[slot]), nil)
			}
		}
		w = next
	}
}

// refund makes refunds of the tokens that are left over.
func (b *batch) refund(decisions []rate.Decision) {
	for slot, left := range b.leftOver {
		if left > 0 {
			refund := rate.Refund{Request: b.requests[slot], At: decisions[slot].At, Delay: decisions[slot].Delay}
			refund.Tokens, refund.Unit = left, min(left, refund.Unit)
			b.refunds = append(b.refunds, refund)
		}
	}
}
