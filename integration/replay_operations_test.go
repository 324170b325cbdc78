package integration

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/strategytest/model"
)

// The operations of a replay: each is done by the strategy and by the model, and compared.

func (p *replay) takeOne(k *replayedKey) {
	p.take(p.request(k, p.limitOf(k)))
}

func (p *replay) peek(k *replayedKey) {
	r := p.request(k, p.limitOf(k))
	r.Tokens, r.Ahead = 0, 0
	p.take(r)
}

// takeSeveral of up to eight buckets or the same ones; a bucket has one limit in a call.
func (p *replay) takeSeveral() int {
	if p.IntN(3) == 0 && p.strategy.Check(&rate.Request{Limit: p.limits[0], Group: 1}) == nil {
		return p.takeGroups()
	}
	requests := make([]rate.Request, 2+p.IntN(7))
	limits := make(map[string]pglimit.Limit)
	for i := range requests {
		k := oneOf(p, p.keys)
		if _, again := limits[k.name]; !again {
			limits[k.name] = p.limitOf(k)
		}
		requests[i] = p.request(k, limits[k.name])
		if p.IntN(6) == 0 {
			requests[i].Tokens, requests[i].Ahead = 0, 0
		}
	}
	p.take(requests...)
	return len(requests)
}

// takeGroups takes for one group or two, each from two buckets or more, or from none.
func (p *replay) takeGroups() int {
	var requests []rate.Request
	limits := make(map[string]pglimit.Limit)
	for group := range 1 + p.IntN(2) {
		for _, i := range p.Perm(len(p.keys))[:2+p.IntN(len(p.keys)-1)] {
			k := p.keys[i]
			if _, again := limits[k.name]; !again {
				limits[k.name] = p.limitOf(k)
			}
			r := p.request(k, limits[k.name])
			r.Tokens, r.Ahead, r.Group = r.Unit, 0, 1+group
			requests = append(requests, r)
		}
	}
	p.take(requests...)
	return len(requests)
}

// denied says whether a bucket of the group lacks tokens.
func (p *replay) denied(requests []rate.Request, group int) bool {
	return group != 0 && slices.ContainsFunc(requests, func(r rate.Request) bool {
		k := p.named(r.Key)
		return r.Group == group && k.bucket.Report(p.asOf(k), modelled(r.Limit), r.Unit).Remaining < r.Tokens
	})
}

// seenAhead corrects the model's row, which is ahead of the clock, if a group that was denied has corrected the row. A
// row that the denial does not need is left as it is.
func (p *replay) seenAhead(k *replayedKey, l model.Limit) {
	row, is := k.bucket.(*model.Bucket)
	if !is || row.At <= p.now+model.Step {
		return
	}
	at := query[int64](p.T, p.pool, "select at_ns from pglimit.token_bucket where limiter = $1 and key = $2", p.limiter, k.name)
	if at == p.now {
		row.TakeAhead(p.now, l, 0, 1, 0)
	}
}

func (p *replay) named(name string) *replayedKey {
	return p.keys[slices.IndexFunc(p.keys, func(k *replayedKey) bool { return k.name == name })]
}

func (p *replay) take(requests ...rate.Request) {
	p.Helper()
	p.at()
	decisions, err := p.ask(requests)
	if err != nil {
		p.Fatal(err)
	}
	denied := false
	for i, r := range requests {
		if i == 0 || r.Group != requests[i-1].Group {
			denied = p.denied(requests, r.Group)
		}
		k := p.named(r.Key)
		l := modelled(r.Limit)
		if denied {
			p.seenAhead(k, l)
			r.Tokens = 0
		}
		var now, granted, delay int64
		if r.Tokens > 0 {
			now = p.asOf(k)
			granted, delay = k.bucket.TakeAhead(now, l, r.Tokens, r.Unit, int64(r.Ahead))
		}
		p.note("key %s takes %d in units of %d at %v (price %d), %v ahead: granted %d; %d of %d requests: %+v", k.name, r.Tokens, r.Unit, r.Limit, l.Token, r.Ahead, granted, i+1, len(requests), k.bucket)
		want := p.decision(k, l, r, granted, decisions[i].At)
		want.Delay = time.Duration(max(0, delay-(want.At.UnixNano()-now)))
		if i < len(requests)-1 && slices.ContainsFunc(requests[i+1:], func(next rate.Request) bool { return next.Key == r.Key }) {
			// Only what is granted is compared: the rest may be told before or after the others.
			decisions[i] = pglimit.Decision{Allowed: decisions[i].Allowed, Granted: decisions[i].Granted, Delay: decisions[i].Delay, At: decisions[i].At}
			want = pglimit.Decision{Allowed: want.Allowed, Granted: want.Granted, Delay: want.Delay, At: want.At}
		}
		p.compare(k, decisions[i], want)
		if granted > 0 {
			r.Tokens, r.Unit = granted, granted
			k.grants = append(k.grants, pglimit.Refund{Request: r, At: decisions[i].At, Delay: decisions[i].Delay})
		}
	}
}

// ask, for each bucket by itself if a row is ahead of the clock: an array call gives up then.
func (p *replay) ask(requests []rate.Request) ([]pglimit.Decision, error) {
	p.Helper()
	decisions, err := p.strategy.Take(p.Context(), on(p.pool), requests)
	if !errors.Is(err, pglimit.ErrNothingTaken) {
		return decisions, err
	}
	decisions = make([]pglimit.Decision, len(requests))
	var ahead bool
	for _, k := range p.keys {
		var own []rate.Request
		for _, r := range requests {
			if r.Key == k.name {
				own = append(own, r)
			}
		}
		if len(own) == 0 {
			continue
		}
		row, is := k.bucket.(*model.Bucket)
		ahead = ahead || is && row.Exists && row.At > p.now
		answers, err := p.strategy.Take(p.Context(), on(p.pool), own)
		if err != nil {
			p.fail(k, "asked by itself %+v: %v", own, err)
		}
		for i, r := range requests {
			if r.Key == k.name {
				decisions[i], answers = answers[0], answers[1:]
			}
		}
	}
	if !ahead {
		return nil, fmt.Errorf("no row is ahead of the clock, and yet: %w", err)
	}
	return decisions, nil
}

// asOf is the time as of which a take reads the row. For token_bucket that is the row's last write if that is
// a little ahead of the clock, which has stepped back by too little to be a step.
func (p *replay) asOf(k *replayedKey) int64 {
	if row, is := k.bucket.(*model.Bucket); is && p.strategy.Name() == "token_bucket" && row.At <= p.now+model.Step {
		return max(p.now, row.At)
	}
	return p.now
}

// decision as the model tells it. After a step back that is too small to be one, it may be
// dated as its row is, which is a little ahead.
func (p *replay) decision(k *replayedKey, l model.Limit, r rate.Request, granted int64, dated time.Time) pglimit.Decision {
	unit, at := max(1, r.Unit), p.now
	if row, is := k.bucket.(*model.Bucket); is && row.At > p.now && row.At <= p.now+model.Step && dated.UnixNano() == row.At {
		at = row.At
	}
	report := k.bucket.Report(at, l, unit)
	return pglimit.Decision{
		Allowed:    granted > 0 || r.Tokens == 0 && report.Remaining >= unit,
		Granted:    granted,
		Remaining:  report.Remaining,
		RetryAfter: report.RetryAfter,
		ResetAfter: report.ResetAfter,
		At:         time.Unix(0, report.At).UTC(),
	}
}

// compare decisions. RetryAfter and ResetAfter are rounded up to the clock's microsecond.
func (p *replay) compare(k *replayedKey, got, want pglimit.Decision) {
	p.Helper()
	want.RetryAfter, want.ResetAfter = asShown(want.RetryAfter, got.RetryAfter), asShown(want.ResetAfter, got.ResetAfter)
	want.HasRow = want.ResetAfter > 0 || got.HasRow // a full bucket may have one
	if got != want {
		p.fail(k, "\n got %+v\nwant %+v", got, want)
	}
	k.due = append(k.due, p.now+int64(want.RetryAfter), p.now+int64(want.ResetAfter))
}

// asShown is a time to wait in whole microseconds. Of two that are longer than a century,
// both mean never.
func asShown(d, shown time.Duration) time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	if d > century && shown > century {
		return shown
	}
	if rest := d % time.Microsecond; rest > 0 {
		d += time.Microsecond - rest
	}
	return d
}

// giveBack some of the last grants, in whole or in part.
func (p *replay) giveBack() {
	var refunds []pglimit.Refund
	for range 1 + p.IntN(3) {
		k := oneOf(p, p.keys)
		if len(k.grants) == 0 {
			continue
		}
		i := len(k.grants) - 1 - p.IntN(min(4, len(k.grants)))
		refund := k.grants[i]
		k.grants = slices.Delete(k.grants, i, i+1)
		refund.Tokens = oneOf(p, []int64{refund.Tokens, refund.Tokens, 1 + p.Int64N(refund.Tokens)})
		refund.Unit = min(refund.Tokens, refund.Limit.Burst)
		refunds = append(refunds, refund)
	}
	p.at()
	if err := p.strategy.GiveBack(p.Context(), on(p.pool), refunds); err != nil {
		p.Fatal(err)
	}
	for _, r := range refunds {
		k := p.named(r.Key)
		k.bucket.Refund(p.now, modelled(r.Limit), r.Tokens, r.At.UnixNano(), int64(r.Delay))
		p.note("key %s gets back %d of %v, granted at %s, due after %v: %+v", k.name, r.Tokens, r.Limit, r.At.Format("15:04:05.000000000"), r.Delay, k.bucket)
	}
}

// pause a bucket, often for so long that it ends while others wait for it.
func (p *replay) pause(pauser pglimit.Pauser, k *replayedKey) {
	length := oneOf(p, []time.Duration{1, time.Millisecond, 100 * time.Millisecond, 3 * time.Second, time.Duration(p.Int64N(int64(p.limitOf(k).Window())) + 1)})
	length = min(length, pglimit.MaxBlock)
	p.at()
	if _, err := pauser.Pause(p.Context(), on(p.pool), p.limiter, k.name, length, pglimit.Relaxed); err != nil {
		p.Fatal(err)
	}
	bucket := k.bucket.(*model.Bucket)
	bucket.Pause(p.now, int64(length))
	k.due = append(k.due, bucket.Paused)
	p.note("key %s is paused for %v: %+v", k.name, length, k.bucket)
}

func (p *replay) reset(k *replayedKey) {
	if err := p.strategy.Reset(p.Context(), on(p.pool), p.limiter, k.name); err != nil {
		p.Fatal(err)
	}
	k.bucket.Reset()
	k.grants = nil // whether those are known after a reset is another test's
	p.note("key %s is reset", k.name)
}

func (p *replay) lease(leaser pglimit.Leaser, k *replayedKey) {
	limit := p.limitOf(k)
	r := pglimit.LeaseRequest{
		Limiter: p.limiter, Key: k.name, Limit: limit,
		Tokens: p.Int64N(2 * limit.Burst), Share: 1 + p.Int64N(4),
		TTL: oneOf(p, p.ttls),
	}
	if len(k.leases) > 0 && p.IntN(4) == 0 { // just when it ends, or when there are no new ones, or just before or behind that
		end := k.leases[len(k.leases)-1].Until.UnixNano() - p.Int64N(2)*int64(r.TTL)/5 + oneOf(p, []int64{-1000, 0, 1000})
		if end > p.now {
			p.now = end
		}
	}
	if len(k.leases) > 0 && p.IntN(3) > 0 {
		i := p.IntN(len(k.leases))
		r.Settle = k.leases[i].Lease
		r.Spent = p.Int64N(r.Settle.Tokens + 1)
		if p.IntN(2) == 0 {
			r.Limit = k.leases[i].limit
		}
		switch p.IntN(6) {
		case 0: // it will be settled again
		case 1: // nobody has such a lease
			r.Settle.Until = r.Settle.Until.Add(-time.Microsecond)
			fallthrough
		case 2: // nor one of so many
			r.Settle.Tokens++
			fallthrough
		default:
			k.leases = slices.Delete(k.leases, i, i+1)
		}
	}
	p.at()
	bucket := k.bucket.(*model.Bucket)
	ahead := bucket.At > p.now && bucket.At <= p.now+model.Step
	if ahead { // what a row has that is a little ahead, a lease tells as of the row: no new one here
		r.Tokens = 0
	}
	got, err := leaser.Lease(p.Context(), on(p.pool), r)
	if err != nil {
		p.Fatal(err)
	}
	l := modelled(r.Limit)
	n, until := bucket.Lease(p.now, l, model.LeaseRequest{
		Want: r.Tokens, Share: r.Share, TTL: int64(r.TTL),
		Settle: r.Settle.Tokens, Spent: r.Spent, SettleUntil: r.Settle.Until.UnixNano(),
	})
	p.note("key %s leases 1/%d, at most %d, of %v (price %d) for %v, settles %d until %s, of which %d are spent: %d tokens until %s: %+v", k.name,
		r.Share, r.Tokens, r.Limit, l.Token, r.TTL, r.Settle.Tokens, r.Settle.Until.Format("15:04:05.000000000"), r.Spent, n, time.Unix(0, until).UTC().Format("15:04:05.000000000"), k.bucket)
	if !bucket.Exists { // a row was inserted, to lock it
		*bucket = model.Bucket{Exists: true, Full: p.now, Token: l.Token, At: p.now}
	}
	if got.Tokens != n || n > 0 && got.Until.UnixNano() != until {
		p.fail(k, "%d tokens until %v, want %d until %v", got.Tokens, got.Until, n, time.Unix(0, until).UTC())
	}
	if !ahead {
		p.compare(k, got.Left, p.decision(k, l, rate.Request{Unit: 1}, 0, got.Left.At))
	}
	if !got.At.Equal(got.Left.At) {
		p.fail(k, "leased at %v, and seen at %v", got.At, got.Left.At)
	}
	if n > 0 {
		k.leases = append(k.leases, heldLease{got, r.Limit})
		k.due = append(k.due, until)
	}
}

// sweep walks the whole table. What it removes must have been full for a minute; then the
// model forgets it too.
func (p *replay) sweep() {
	p.at()
	var from pglimit.Cursor
	for done := false; !done; {
		swept, err := p.strategy.Sweep(p.Context(), on(p.pool), from, 1000)
		if err != nil {
			p.Fatal(err)
		}
		from, done = swept.Next, swept.Done
	}
	there := query[[]string](p.T, p.pool, fmt.Sprintf("select coalesce(array_agg(distinct key), '{}') from pglimit.%s where limiter = '%s'", p.strategy.Name(), p.limiter))
	for _, k := range p.keys {
		if ranges, are := k.bucket.(*model.Ranges); are {
			ranges.Sweep(p.now - int64(time.Minute))
			continue
		}
		if slices.Contains(there, k.name) {
			continue
		}
		// Nobody can tell the difference, by whatever limit.
		for _, l := range p.limits {
			row, is := k.bucket.(*model.Bucket)
			if is && p.now-row.Paused > int64(100*24*time.Hour) {
				break // it was paused that long ago, whatever its window
			}
			if d := k.bucket.Report(p.now, modelled(l), 1); d.ResetAfter > 0 {
				p.fail(k, "swept, though it is full in %v only", d.ResetAfter)
			}
		}
		k.bucket.Reset()
		p.note("key %s is swept", k.name)
	}
}
