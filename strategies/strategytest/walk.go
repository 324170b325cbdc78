package strategytest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// walk is a history of random operations on a few buckets, by one caller. The strategy must do as its twin does.
type walk struct {
	twin
	*rand.Rand
	buckets []walked
	begins  bool // each take of a watched session is in a transaction of the caller's
}

// walked is a bucket, the limits that it may have, and the rules by which its key may be blocked.
type walked struct {
	rate.Bucket
	limits []rate.Limit
	block  rate.Block
}

// Limits under which nothing comes back, and others.
var (
	slowLimits  = []rate.Limit{slow(9), slow(5), rate.Every(1001 * time.Hour).WithBurst(9), rate.Every(300 * time.Hour).WithBurst(20)}
	quickLimits = []rate.Limit{rate.Every(2 * ms).WithBurst(5), {Tokens: 997, Period: 1300 * ms, Burst: 20}, rate.PerSecond(70).WithBurst(10), slow(8)}
)

// anyKeys are keys in any script.
var anyKeys = []string{
	"user:42", "ключ", "鍵", "مفتاح", "🔑👩‍👩‍👧", "e\u0301", "é", " ", "\t\n\r", "a b",
	`it's`, `"quoted"`, `back\slash`, `\x00`, `%s%d%`, `100%`, "_", "$1", ":name", "?", ";--", "/*", "{a,b}", "NULL", "null",
	strings.Repeat("k", 512), strings.Repeat("é", 256), strings.Repeat("x", rate.MaxKeyBytes),
	strings.Repeat("🔑", rate.MaxKeyBytes/4),
}

// walk on that session. Two of its buckets have the longest name of a limiter, and keys that others have, too.
func (s *suite) walk(session rate.Session, seed uint64) *walk {
	w := &walk{twin: twin{suite: s, session: session, log: make(map[rate.Bucket][]string)}, Rand: rand.New(rand.NewPCG(seed, 61))}
	w.watched, _ = session.(*watched)
	w.remember(past{})
	keys := w.Perm(len(anyKeys))
	for i, limits := range [][]rate.Limit{slowLimits, slowLimits, slowLimits, quickLimits, quickLimits} {
		b := walked{rate.Bucket{Limiter: fmt.Sprint(s.limiter, seed), Key: anyKeys[keys[i/2]]}, s.kept(limits), blocking(1 + int64(i))}
		b.block.For, b.block.Max, b.block.Forget = ms, 3*ms, 10*ms
		if i%2 == 1 {
			b.Limiter += strings.Repeat("l", rate.MaxLimiterBytes-len(b.Limiter))
		}
		w.buckets = append(w.buckets, b)
	}
	return w
}

// kept are the limits that a bucket may have, one after another. What a change does under another rule, the
// rows of its Table say; and a strategy without bursts may keep the interval that it has promised.
func (s *suite) kept(limits []rate.Limit) []rate.Limit {
	switch {
	case s.table.Whole:
		return []rate.Limit{slow(1)}
	case !s.can(rate.Request{Limit: slow(2)}):
		return []rate.Limit{limits[0].WithBurst(1)}
	case !s.fillsAsATokenBucket():
		return slowLimits[:1]
	}
	return limits
}

// rounds of operations: some of each kind, in any order; and a look at each bucket.
func (w *walk) rounds(n int) {
	w.Helper()
	for range n {
		for _, kind := range w.Perm(12) {
			w.operation(kind, w.buckets[w.IntN(len(w.buckets))])
		}
	}
	for _, b := range w.buckets {
		w.asks(w.whole(b, 0))
	}
}

func (w *walk) operation(kind int, b walked) {
	w.Helper()
	switch kind {
	case 0:
		w.resets(b)
	case 1, 2:
		w.givesBack()
	case 3, 4:
		w.leases(b)
	case 5:
		w.passes(b)
	case 6:
		for range w.some(anID, 5) {
			r := w.whole(b, 1+w.Int64N(min(2, b.limits[0].Burst)))
			r.ID, r.IDTTL = []string{"1", "2", strings.Repeat("é", rate.MaxIDBytes/2), `'\"%🔑`}[w.IntN(4)], time.Hour
			w.asks(r)
		}
	case 7:
		b = w.buckets[w.IntN(3)] // nothing comes back between a denial and the block that it makes
		for range w.some(aBlock, 30) {
			r := w.whole(b, []int64{0, 1, 99, 99}[w.IntN(4)])
			r.Block = &b.block
			w.asks(r)
		}
	case 8, 9:
		w.asks(w.several(w.some(aGroup, 4))...)
	default:
		w.asks(w.request(b))
	}
}

// some is a random number up to n, or zero if the strategy does not know such requests.
func (w *walk) some(such rate.Request, n int) int {
	if !w.can(such) {
		return 0
	}
	return 1 + w.IntN(n)
}

// whole is a request for so many tokens, or for a burst if that is less, all or nothing.
func (w *walk) whole(b walked, tokens int64) rate.Request {
	limit := b.limits[0]
	if w.IntN(3) == 0 {
		limit = b.limits[w.IntN(len(b.limits))]
	}
	tokens = min(tokens, limit.Burst)
	return rate.Request{
		Limiter: b.Limiter, Key: b.Key, Limit: limit, Tokens: tokens, Unit: max(1, tokens),
		Durability: rate.Durability(w.IntN(2)), Impatient: w.IntN(4) == 0,
	}
}

// request that is whole, a peek, for as much as there is, or ahead.
func (w *walk) request(b walked) rate.Request {
	r := w.whole(b, 1+w.Int64N(20))
	switch w.IntN(6) {
	case 0:
		r.Tokens, r.Unit = 0, w.Int64N(r.Limit.Burst+1)
	case 1:
		r.Tokens, r.Unit = r.Tokens*[]int64{1, 2, 100}[w.IntN(3)], 1+w.Int64N(r.Tokens)
	case 2:
		if w.can(ahead) && w.fillsAsATokenBucket() { // what is due when, another rule says
			r.Ahead = time.Duration(1 + w.Int64N(int64(3*r.Limit.Window())))
			r.Ahead -= time.Duration(w.IntN(2)) * (r.Ahead % r.Limit.Token()) // perhaps whole tokens
		}
	}
	return r
}

// several requests for one call, first those of so many groups. A bucket has one limit in it.
func (w *walk) several(groups int) (requests []rate.Request) {
	limits := make(map[rate.Bucket][]rate.Limit)
	for i := range 2 + w.IntN(3) + groups {
		n := 1
		if i < groups {
			n += w.IntN(len(w.buckets) - 1)
		}
		for _, j := range w.Perm(len(w.buckets))[:n] {
			b := w.buckets[j]
			if known := limits[b.Bucket]; known != nil {
				b.limits = known
			}
			r := w.request(b)
			if i < groups {
				r = w.whole(b, 1+w.Int64N(4))
				r.Group = 1 + i
				if w.IntN(4) == 0 && w.can(aGroupAhead) && w.fillsAsATokenBucket() {
					r.Ahead = time.Duration(1 + w.Int64N(int64(3*r.Limit.Window())))
				}
			}
			limits[b.Bucket] = []rate.Limit{r.Limit}
			requests = append(requests, r)
		}
	}
	return requests
}

// asks for the requests, in one call.
func (w *walk) asks(requests ...rate.Request) {
	w.Helper()
	if w.watched != nil {
		w.watched.did, w.watched.sync = nil, nil
		if w.begins {
			w.watched.exec(w.suite, "begin")
			defer w.watched.exec(w.suite, "commit")
		}
	}
	latest := w.at
	decisions, err := w.try(w.session, requests...)
	if err != nil {
		w.refuses(err, requests)
		return
	}
	writes, groups := false, make(map[int][]rate.Decision)
	for i, r := range requests {
		d := decisions[i]
		counted := r.Block != nil && r.Tokens > 0 && !w.isBlocked(r, d.At)
		writes = writes || counted || d.Granted > 0 && (r.ID == "" || d.At.After(latest)) // else it was granted before
		// Of two requests for one bucket, the first may be told what is there before or after the second.
		w.decides(r, d, slices.ContainsFunc(requests[i+1:], func(next rate.Request) bool { return next.Bucket() == r.Bucket() }))
		groups[r.Group] = append(groups[r.Group], d)
	}
	delete(groups, 0)
	for _, group := range groups {
		if !isWhole(group) {
			w.Fatalf("a part of a group: %+v\n%+v", requests, decisions)
		}
	}
	if w.watched != nil {
		w.wrote(requests, writes)
	}
}

// wrote checks what was written: nothing for denials and peeks, which lock no row either; and as the most
// durable of the requests wants it.
func (w *walk) wrote(requests []rate.Request, some bool) {
	w.Helper()
	if did := w.watched.did; len(did) > 0 != some {
		w.Fatalf("%+v: wants to write: %v, but it %q", requests, some, did)
	}
	w.isDurable(slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Durability == rate.Durable }))
}

func (w *walk) isDurable(wanted bool) {
	w.Helper()
	if wanted && w.watched != nil && slices.Contains(w.watched.sync, "off") {
		w.Fatal("a durable call was written with synchronous_commit off")
	}
}

// passes some time, perhaps until a lease is over.
func (w *walk) passes(b walked) {
	w.Helper()
	until := w.at.Add(time.Duration(w.IntN(10)) * ms)
	for _, r := range w.held {
		if end := r.Settle.Until; end.Before(w.at.Add(50 * ms)) {
			until = end
		}
	}
	for w.at.Before(until) {
		w.asks(w.whole(b, 0))
	}
}

// resets the bucket, or all of its limiter.
func (w *walk) resets(b walked) {
	w.Helper()
	able, is := w.strategy.(rate.Resetter)
	all, resetsAll := w.strategy.(rate.AllResetter)
	var removed, want int64
	var err error
	switch {
	case resetsAll && w.IntN(3) == 0:
		removed, err = all.ResetAll(w.Context(), w.session, b.Limiter)
		w.inMemory(w.at, func() { want, _ = w.memory.ResetAll(w.Context(), nil, b.Limiter) })
	case is:
		err = able.Reset(w.Context(), w.session, b.Limiter, b.Key)
		w.inMemory(w.at, func() { _ = w.memory.Reset(w.Context(), nil, b.Limiter, b.Key) })
	}
	w.note(b.Bucket, "is reset")
	if err != nil || removed < want && len(b.limits) > 1 {
		w.Fatalf("%d rows removed of %d: %v", removed, want, err)
	}
	if len(b.limits) == 1 { // what is then known of an old grant is another strategy's own business
		w.grants = slices.DeleteFunc(w.grants, func(r rate.Refund) bool { return r.Limiter == b.Limiter })
	}
}

// givesBack some grants, or parts of them, of different buckets; some as if they were older.
func (w *walk) givesBack() {
	w.Helper()
	giver, able := w.strategy.(rate.GiveBacker)
	if !able {
		return
	}
	var refunds []rate.Refund
	for range w.IntN(4) {
		i := len(w.grants) - 1 - w.IntN(8)
		if i < 0 || slices.ContainsFunc(refunds, func(r rate.Refund) bool { return r.Bucket() == w.grants[i].Bucket() }) ||
			slices.ContainsFunc(w.held, func(r rate.LeaseRequest) bool { return r.Limiter == w.grants[i].Limiter && r.Key == w.grants[i].Key }) {
			continue // a bucket with a lease does not say when it was full without that
		}
		r := w.grants[i]
		w.grants = slices.DeleteFunc(w.grants, func(other rate.Refund) bool {
			return other == r || other.Bucket() == r.Bucket() && !w.fillsAsATokenBucket()
		})
		if w.IntN(3) == 0 {
			if w.fillsAsATokenBucket() { // what an older grant has left is another rule's own business
				r.At = r.At.Add(-time.Duration(w.Int64N(3)) * min(r.Limit.Token(), 2000*time.Hour))
			}
			r.Tokens = w.Int64N(r.Tokens + 1)
			r.Unit = min(r.Tokens, r.Unit)
		}
		refunds = append(refunds, r)
	}
	if w.watched != nil {
		w.watched.sync = nil
	}
	before := w.at
	if err := giver.GiveBack(w.Context(), w.session, refunds); err != nil {
		w.Fatalf("refund of %+v: %v", refunds, err)
	}
	w.isDurable(slices.ContainsFunc(refunds, func(r rate.Refund) bool { return r.Durability == rate.Durable }))
	for _, r := range refunds {
		w.givenBack(r, before)
	}
}

// leases settles a lease and takes another.
func (w *walk) leases(b walked) {
	w.Helper()
	leaser, able := w.strategy.(rate.Leaser)
	if !able {
		return
	}
	asked := w.whole(b, 1)
	r := rate.LeaseRequest{
		Limiter: b.Limiter, Key: b.Key, Limit: asked.Limit, Durability: asked.Durability,
		Tokens: w.Int64N(asked.Limit.Burst), Share: 1 + w.Int64N(3), TTL: []time.Duration{5 * ms, 30 * ms, time.Hour}[w.IntN(3)],
	}
	if len(w.held) > 0 && w.IntN(3) > 0 {
		i := w.IntN(len(w.held))
		old := w.held[i]
		w.held = slices.Delete(w.held, i, i+1)
		r.Limiter, r.Key, r.Limit, r.Settle = old.Limiter, old.Key, old.Limit, old.Settle
		r.Spent = w.Int64N(r.Settle.Tokens + 1)
	}
	if w.watched != nil {
		w.watched.sync = nil
	}
	got, err := leaser.Lease(w.Context(), w.session, r)
	if err != nil {
		w.Fatalf("%+v: %v", r, err)
	}
	w.isDurable(r.Durability == rate.Durable)
	w.leased(r, got)
}
