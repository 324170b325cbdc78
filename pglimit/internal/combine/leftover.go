package combine

import (
	"context"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Tokens that were granted to callers who have left go to waiting callers, or back to the
// bucket.

// passOn gives tokens of callers who have left to callers who wait for the same bucket now, in
// order of arrival.
func (l *lane) passOn(b *batch, decisions []rate.Decision) {
	slots := make(map[rate.Bucket]int)
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
			if tokens == 0 || lessDurable || b.requests[slot].Limit != w.Request.Limit || !b.fits(slot, &w.Request, decisions) {
				delete(slots, w.Request.Bucket()) // later waiters for this bucket must not overtake it
			} else {
				b.leftOver[slot] -= tokens
				l.queue.remove(w)
				l.combiner.Stats.PassedOn.Add(tokens)
				w.Answer(decisions[slot].Before(b.leftOver[slot], &b.requests[slot], &w.Request), nil)
			}
		}
		w = next
	}
}

// giveBack returns the tokens that are still left over. The next requests for their buckets are in
// this lane, so they are sent after it.
func (l *lane) giveBack(b *batch, tokens int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), settleTime)
	defer cancel()
	defer context.AfterFunc(l.combiner.aborted, cancel)()
	if err := l.combiner.calls.GiveBack(ctx, b.refunds); err != nil {
		l.combiner.Stats.Lost.Add(tokens)
		return
	}
	l.combiner.Stats.GivenBack.Add(tokens)
}

// refund makes refunds of the tokens that are left over.
func (b *batch) refund(decisions []rate.Decision) (tokens int64) {
	for slot, left := range b.leftOver {
		if left > 0 {
			refund := rate.Refund{Request: b.requests[slot], At: decisions[slot].At, Delay: decisions[slot].Delay}
			refund.Tokens, refund.Unit = left, min(left, refund.Unit)
			b.refunds = append(b.refunds, refund)
			tokens += left
		}
	}
	return tokens
}
