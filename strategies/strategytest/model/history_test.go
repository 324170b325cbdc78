package model

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

const second = 1_000_000_000

// began is where the database's clock stands when a history begins.
const began = 1_000_000_000 * second

var rates = []struct {
	tokens int64
	period time.Duration
}{
	{100, time.Second}, {200, time.Second}, {10, time.Second}, {1000, time.Minute}, {1000, 24 * time.Hour},
	{10, time.Hour}, {3, time.Second}, {7, time.Second},
}

// mix says what happens in a history.
type mix struct {
	leases, back, forward, refunds bool // back and forward are steps of the clock

	sameLimit bool // one limit only
	ahead     bool // tokens are reserved too, also for many callers at once

	late int64 // by how much at most a take may have read the clock before it locked the row
}

// lease that somebody holds, who counts passed time.
type lease struct{ n, spent, until, realUntil int64 }

// history is a random one: up to three limits side by side on one key (a rolling deploy), takes and, as the mix says,
// reservations, leases that are spent at any time before they expire, settled or abandoned, refunds, and a clock that
// steps. What was reserved is used when it is due. It returns the tokens granted too many.
func history(seed uint64, m mix, f fault, length int) int64 {
	r := rand.New(rand.NewPCG(seed, 7))
	pick := func(from ...int64) int64 { return from[r.IntN(len(from))] }
	limits := make([]Limit, pick(1, 2, 2, 3))
	for i := range limits {
		if i > 0 && m.sameLimit {
			limits[i] = limits[0]
			continue
		}
		rate := rates[r.IntN(len(rates))]
		limits[i] = NewLimit(rate.tokens, rate.period, pick(1, 3, 20, rate.tokens, 1000))
	}
	type grant struct {
		at, delay int64
		l         Limit
		unit      int64
		ids       []int // of each unit
	}
	var (
		judge          = NewJudge(limits...)
		bucket         = Bucket{fault: f}
		pace           = pick(1e5, 1e6, 1e7, 1e8, 1e10)
		passed, offset int64
		leases         []lease
		grants         []grant
	)
	for range length {
		passed += r.Int64N(pace)
		if r.IntN(50) == 0 {
			passed += r.Int64N(300 * pace) // nobody asks for a while
		}
		if (m.back || m.forward) && r.Float64() < 0.003 {
			by := pick(Step/2, Step+1, 30*Step, second/2, 2*second, 30*second, 86400*second)
			if !m.forward || m.back && r.IntN(2) == 0 {
				by = -by
			}
			offset += by
			judge.Step(passed, by)
		}
		now, l := began+passed+offset, limits[r.IntN(len(limits))]
		n := min(l.Burst, pick(1, 1, 1, 2, max(1, l.Burst/3), l.Burst))
		switch what := r.Float64(); {
		case what < 0.1 && m.leases:
			granted, until := bucket.Lease(now, l, LeaseRequest{Want: n, Share: 1, TTL: pick(pace, 20*pace, 200*pace)})
			switch end := passed + until - now; {
			case granted == 0:
			case r.IntN(3) == 0: // spent at the last moment, and never settled
				judge.Grant(end-1, granted)
			default:
				leases = append(leases, lease{granted, 0, until, end})
			}
		case what < 0.4 && len(leases) > 0:
			lease := &leases[r.IntN(len(leases))]
			if passed < lease.realUntil && lease.spent < lease.n {
				k := 1 + r.Int64N(lease.n-lease.spent)
				lease.spent += k
				judge.Grant(passed, k)
			}
		case what < 0.45 && len(leases) > 0:
			i := r.IntN(len(leases))
			settled := leases[i]
			leases = append(leases[:i], leases[i+1:]...)
			bucket.Lease(now, l, LeaseRequest{Share: 1, Settle: settled.n, Spent: settled.spent, SettleUntil: settled.until})
		case what < 0.5 && len(grants) > 0 && m.refunds:
			g := &grants[max(0, len(grants)-20)+r.IntN(min(20, len(grants)))]
			if units := len(g.ids); units > 0 {
				keep := units - int(pick(int64(units), 1, 1+r.Int64N(int64(units))))
				for _, id := range g.ids[keep:] { // the last that were granted
					judge.Refund(id)
				}
				back := int64(units-keep) * g.unit
				bucket.Refund(now, g.l, back, g.at, g.delay)
				g.ids, g.delay = g.ids[:keep], max(0, g.delay-back*g.l.Token)
			}
		default:
			unit, dated := pick(1, n, n), passed
			if m.late > 0 && r.IntN(3) == 0 {
				late := r.Int64N(m.late + 1)
				if m.late <= Step { // behind the lock, the clock is read again
					bucket.redate(now)
					late = min(late, max(0, now+Step-bucket.At))
				}
				now, dated = now-late, dated-late
			}
			want, ahead := n/unit*unit, int64(0)
			if m.ahead && r.IntN(2) == 0 {
				want, ahead = unit*pick(1, 1, n/unit, 30), r.Int64N(pick(l.Token, 5*l.Token, 2*l.Window(), 20*l.Window()))
			}
			granted, delay := bucket.TakeAhead(now, l, want, unit, ahead)
			if delay > ahead {
				judge.Grant(dated, Forever) // it is due too late
			}
			g := grant{now, delay, l, unit, nil}
			for n := unit; n <= granted; n += unit {
				g.ids = append(g.ids, judge.Grant(dated+max(0, delay-(granted-n)*l.Token), unit))
			}
			if granted > 0 {
				grants = append(grants, g)
			}
		}
	}
	return judge.Tokens(judge.Over())
}

// mixes of what is promised together. Steps forward while leases are out cost up to what
// they hold.
var mixes = map[string]mix{
	"leases":                 {leases: true},
	"steps":                  {back: true, forward: true},
	"leases and steps back":  {leases: true, back: true},
	"refunds":                {refunds: true, sameLimit: true},
	"refunds and steps back": {refunds: true, sameLimit: true, back: true},
	"refunds beside leases":  {refunds: true, leases: true, sameLimit: true},

	"reservations":                {ahead: true, sameLimit: true},
	"reservations and refunds":    {ahead: true, refunds: true, sameLimit: true},
	"reservations and steps back": {ahead: true, back: true, sameLimit: true},
	"reservations beside leases":  {ahead: true, refunds: true, leases: true, sameLimit: true},
}

func runs(t *testing.T, all int) uint64 {
	t.Helper()
	switch {
	case testing.Short():
		return uint64(all / 5)
	case os.Getenv("PGLIMIT_TEST_HISTORIES") != "": // the long run
		return uint64(all * 10)
	}
	return uint64(all)
}

// over is how many histories of a mix grant too much, and by how many tokens at most.
func over(m mix, f fault, runs uint64) (histories int, tokens int64) {
	for seed := range runs {
		if n := history(seed, m, f, 2000); n > 0 {
			histories++
			tokens = max(tokens, n)
		}
	}
	return histories, tokens
}

func TestNeverOver(t *testing.T) {
	t.Parallel()
	for name, m := range mixes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := runs(t, 25)
			if histories, tokens := over(m, none, n); histories > 0 {
				t.Errorf("%d of %d histories are over, by %d tokens at most", histories, n, tokens)
			}
		})
	}
}

// A take may have read the clock up to Step before it locked the row. A clock that is older
// makes the wait for the lock look like a step back, after which time is credited twice.
func TestAClockReadTooEarlyIsOver(t *testing.T) {
	t.Parallel()
	late := mix{leases: true, back: true, sameLimit: true, late: Step}
	if histories, tokens := over(late, none, runs(t, 40)); histories > 0 {
		t.Errorf("%d histories are over, by %d tokens at most", histories, tokens)
	}
	late.late = 100 * Step
	if histories, _ := over(late, none, 20); histories == 0 {
		t.Error("it is not seen that the clock is read a second too early")
	}
}

// shownBy are the mixes that show the rarer faults; the first history or two of most mixes show the
// others.
var shownBy = map[fault]string{noConversion: "steps", aheadOfLeases: "reservations beside leases", refundsAcrossAStep: "refunds and steps back"}

func TestEachFaultIsCaught(t *testing.T) {
	t.Parallel()
	for f := clamps; f < noStep; f++ {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(500) {
				for name, m := range mixes {
					if only, rare := shownBy[f]; rare && name != only {
						continue
					}
					if n := history(seed, m, f, 2000); n > 0 {
						t.Logf("%d tokens over, in history %d of %s", n, seed, name)
						return
					}
				}
			}
			t.Error("no history is over")
		})
	}
}
