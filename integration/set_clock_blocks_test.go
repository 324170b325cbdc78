package integration

import (
	"context"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// login is a rule whose times all differ. A second denial within 10 s blocks the key.
var login = pglimit.Block{After: 2, Within: 10 * time.Second, For: time.Second, Max: 3 * time.Second, Forget: 20 * time.Second}

// orBlock takes one token of an empty bucket, and wants the key to be blocked for that long then: 0 is a
// denial that does not block. What SQL says after it must agree.
func (b setClock) orBlock(block pglimit.Block, blocked time.Duration) {
	b.Helper()
	r := b.request(hours, 1)
	r.Block = &block
	d := b.ask(r)
	if d.Allowed || d.BlockedFor != blocked || d.Blocked != (blocked > 0) {
		b.Errorf("%+v: want a denial, blocked for %v", d, blocked)
	}
	b.free(blocked)
}

// free says when the key is not blocked any more, in Go and in SQL, to a limit whose bucket is full soon.
func (b setClock) free(after time.Duration) {
	b.Helper()
	r := b.request(tenPer, 0)
	r.Block = &login
	d := b.ask(r)
	inSQL, err := askSQL(b.Context(), on(b.pool), "pglimit.peek('test', $1, $2)", b.key, tenPer.String())
	if d.BlockedFor != after || err != nil || inSQL.RetryAfter != after || inSQL.Allowed != (after == 0) {
		b.Errorf("Go says %+v, SQL %+v, %v: want it blocked for %v", d, inSQL, err, after)
	}
}

// forgotten says when the row means nothing any more: a minute later it is swept.
func (b setClock) forgotten(at time.Duration) {
	b.Helper()
	if got := query[int64](b.T, b.pool, "select forget_ns from pglimit.token_bucket_blocks where key = $1", b.key); got != b.time(at).UnixNano() {
		b.Errorf("it is forgotten at %v, want %v", time.Duration(got-b.time(0).UnixNano()), at)
	}
}

// inSQL takes one of ten tokens, which must be there or not.
func (b setClock) inSQL(allowed bool) {
	b.Helper()
	before, err := askSQL(b.Context(), on(b.pool), "pglimit.peek('test', $1, $2)", b.key, tenPer.String())
	must(b.T, err)
	d, err := askSQL(b.Context(), on(b.pool), "pglimit.allow('test', $1, $2)", b.key, tenPer.String())
	if err != nil || d.Allowed != allowed || !d.At.Equal(before.At) {
		b.Errorf("%+v, %v: want %t at %v", d, err, allowed, before.At)
	}
}

func blocksOnSetClock() map[string]func(b setClock) {
	const s, us = time.Second, time.Microsecond
	blocked := func(b setClock) { // from 0s to 1s
		b.take(hours, 1)
		b.orBlock(login, 0)
		b.orBlock(login, s)
	}
	return map[string]func(b setClock){
		"the second denial blocks, until the block ends": func(b setClock) {
			blocked(b)
			for _, left := range []time.Duration{s, us, 0} {
				b.at(s - left)
				b.free(left)
			}
			b.inSQL(true)
		},
		"a block denies in SQL until it ends": func(b setClock) {
			blocked(b)
			b.at(s - us)
			b.inSQL(false)
			b.at(s)
			b.inSQL(true)
		},
		"what is denied while it is blocked does not count": func(b setClock) {
			blocked(b)
			for range 5 {
				b.orBlock(login, s)
				b.inSQL(false)
			}
			b.at(s)
			b.orBlock(login, 0)
			b.orBlock(login, 2*s)
		},
		"denials in SQL, grants and peeks do not count": func(b setClock) {
			grants := func() {
				b.Helper()
				r := b.request(hours.WithBurst(9), 1)
				r.Block = &login
				if d := b.ask(r); !d.Allowed || d.Blocked {
					b.Errorf("%+v, want a grant", d)
				}
			}
			b.take(hours, 1)
			b.orBlock(login, 0)
			for range 3 {
				if d, err := askSQL(b.Context(), on(b.pool), "pglimit.allow('test', $1, $2)", b.key, hours.String()); err != nil || d.Allowed || !d.At.Equal(b.time(0)) {
					b.Errorf("%+v, %v", d, err)
				}
				grants()
				b.free(0)
			}
			b.orBlock(login, s)
		},
		"denials a microsecond less than the span apart add up": func(b setClock) {
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.at(10*s - us)
			b.orBlock(login, s)
		},
		"denials as far apart as the span do not": func(b setClock) {
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.at(10 * s)
			b.orBlock(login, 0)
			b.at(19 * s)
			b.orBlock(login, s)
		},
		"a span does not move with each denial": func(b setClock) {
			three := login
			three.After = 3
			b.take(hours, 1)
			for _, at := range []time.Duration{0, 6 * s, 12 * s, 18 * s} {
				b.at(at)
				b.orBlock(three, 0)
			}
			b.orBlock(three, s)
		},
		"after a block a new span begins with the next denial": func(b setClock) {
			blocked(b)
			b.at(9 * s)
			b.orBlock(login, 0)
			b.at(12 * s) // more than a span after the first denial of all
			b.orBlock(login, 2*s)
		},
		"each block is twice as long, up to the longest": func(b setClock) {
			b.take(hours, 1)
			at := time.Duration(0)
			for _, want := range []time.Duration{s, 2 * s, 3 * s, 3 * s} {
				b.at(at)
				b.orBlock(login, 0)
				b.orBlock(login, want)
				at += want
			}
			// It ended at 9s, and is forgotten at 29s.
			b.at(29*s - us)
			b.orBlock(login, 0)
			b.orBlock(login, 3*s)
			b.at(29*s - us + 3*s + 20*s)
			b.orBlock(login, 0)
			b.orBlock(login, s)
		},
		"the row is kept for as long as a span or a block means something": func(b setClock) {
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.forgotten(10 * s) // the span ends
			b.at(5 * s)
			b.orBlock(login, s)
			b.forgotten(26 * s) // the block has ended 20 s ago
			b.at(20 * s)
			b.orBlock(login, 0)
			b.forgotten(30 * s)
			short := login
			short.Within, short.Forget = s, 0
			b.at(21 * s)
			b.orBlock(short, 0)
			b.forgotten(30 * s) // another rule does not forget it sooner
		},
		"after a step back a block lasts as long as it would have": func(b setClock) {
			b.at(time.Hour)
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.orBlock(login, s)
			b.at(0)
			b.free(s)
			b.inSQL(false) // which moves the row
			b.forgotten(21 * s)
			b.at(s - us)
			b.free(us)
			b.inSQL(false)
			b.at(s)
			b.inSQL(true)
		},
		"after a step back a denial of a blocked key moves the block": func(b setClock) {
			b.at(time.Hour)
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.orBlock(login, s)
			b.at(0)
			b.orBlock(login, s)
			b.at(s - us)
			b.orBlock(login, us)
			b.at(s)
			b.orBlock(login, 0)
			b.orBlock(login, 2*s)
		},
		"after a step back a span lasts as long as it would have": func(b setClock) {
			three := login
			three.After = 3
			b.at(time.Hour - 4*s)
			b.take(hours, 1)
			b.orBlock(three, 0)
			b.at(time.Hour)
			b.orBlock(three, 0)
			b.at(0) // 4 s of the span have passed
			b.orBlock(three, s)
		},
		"after a step back a span ends when it would have": func(b setClock) {
			b.at(time.Hour - 4*s)
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.at(0)
			r := login
			r.After = 3
			b.orBlock(r, 0)
			b.at(10 * s)
			b.orBlock(login, 0)
		},
		"after a step back a block is forgotten when it would have been": func(b setClock) {
			b.at(time.Hour)
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.orBlock(login, s)
			b.at(time.Hour + 2*s)
			b.orBlock(login, 0) // the block ended a second ago
			b.at(0)
			b.orBlock(login, 2*s)
		},
		"a row that is 10 ms ahead is no step": func(b setClock) {
			b.at(10 * time.Millisecond)
			b.take(hours, 1)
			b.orBlock(login, 0)
			b.orBlock(login, s)
			b.at(0)
			b.free(s + 10*time.Millisecond)
			b.inSQL(false)
			b.free(s + 10*time.Millisecond)
		},
		"a count that is 10 ms ahead is no step": func(b setClock) {
			blocked(b)
			b.at(21*s + 5*time.Millisecond)
			b.orBlock(login, 0)
			b.at(21*s - 5*time.Millisecond) // 5 ms before the block, which ended at 1 s, is forgotten
			b.orBlock(login, 2*s)
		},
		"another limiter's key is not blocked": func(b setClock) {
			blocked(b)
			for _, limiter := range []string{"a test", "test 2"} {
				d, err := askSQL(b.Context(), on(b.pool), "pglimit.allow($1, $2, $3)", limiter, b.key, tenPer.String())
				if err != nil || !d.Allowed {
					b.Errorf("%s: %+v, %v", limiter, d, err)
				}
			}
		},
	}
}

// A denial that waited for one that blocks the key is told of the block, and does not count.
func TestADenialThatWaitedBehindABlockDoesNotCount(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	block := hourly
	block.Within, block.Forget = time.Hour, time.Hour
	take(t, pool, strategies.TokenBucket{}, "k", hours)
	first, second := begin(t, pool), newPool(t, databaseURL(pool), 1)
	takeOrBlock(t, first, "k", hours, 1, block)
	told := make(chan pglimit.Decision, 1)
	go func() {
		decisions, err := strategies.TokenBucket{}.Take(t.Context(), on(second), []rate.Request{{Limiter: "test", Key: "k", Limit: hours, Tokens: 1, Unit: 1, Block: &block}})
		if err != nil {
			t.Error(err)
			decisions = make([]pglimit.Decision, 1)
		}
		told <- decisions[0]
	}()
	waiting(t, pool, 1)
	must(t, first.Commit(context.WithoutCancel(t.Context())))
	until := query[int64](t, pool, "select until_ns from pglimit.token_bucket_blocks where key = 'k'")
	if d := <-told; !d.Blocked || d.At.Add(d.BlockedFor).UnixNano() != until {
		t.Errorf("%+v: want it blocked until %v", d, time.Unix(0, until).UTC())
	}
	if state := query[string](t, pool, "select denials || ' denials, level ' || level from pglimit.blocks where key = 'k'"); state != "0 denials, level 1" {
		t.Error(state)
	}
}

// A denial that waited for another one counts from when it could: the span of the other may be over.
func TestADenialThatWaitedForAnotherBeginsASpan(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	block := hourly
	block.After, block.Within = 2, 200*time.Millisecond
	take(t, pool, strategies.TokenBucket{}, "k", hours)
	first, second := begin(t, pool), newPool(t, databaseURL(pool), 1)
	takeOrBlock(t, first, "k", hours, 1, block)
	told := make(chan pglimit.Decision, 1)
	go func() { told <- takeOrBlock(t, second, "k", hours, 1, block) }()
	waiting(t, pool, 1)
	over := query[int64](t, first, "select pglimit.clock_ns() from pg_sleep(0.21)")
	must(t, first.Commit(context.WithoutCancel(t.Context())))
	if d := <-told; d.Blocked || d.Allowed {
		t.Errorf("%+v", d)
	}
	if since := query[int64](t, pool, "select since_ns from pglimit.token_bucket_blocks where denials = 1"); since < over {
		t.Errorf("the span begins %v before the other denial was counted", time.Duration(over-since))
	}
}
