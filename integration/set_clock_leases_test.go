package integration

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

func leasesOnSetClock() map[string]func(b setClock) {
	const s, ms, us = time.Second, time.Millisecond, time.Microsecond
	return map[string]func(b setClock){
		"what is set aside does not flow back": func(b setClock) {
			b.lease(perSecond, 4, time.Hour)
			b.take(perSecond, 2)
			b.at(1 * s)
			b.has(perSecond, 5, time.Hour+3*s)
			b.at(5 * s)
			b.has(perSecond, 6, time.Hour-1*s)
			b.denies(perSecond, 7)
		},
		"spent tokens are taken at the settlement, the others come back": func(b setClock) {
			lease := b.lease(perSecond, 6, time.Hour)
			b.has(perSecond, 4, time.Hour+6*s)
			b.at(3 * s)
			b.settle(perSecond, lease, 2)
			b.has(perSecond, 8, 2*s)
		},
		"spent tokens come on top of what is owed": func(b setClock) {
			lease := b.lease(perSecond, 3, time.Hour)
			b.take(perSecond, 5)
			b.at(2 * s)
			b.settle(perSecond, lease, 2)
			b.has(perSecond, 5, 5*s)
		},
		"a settlement is a write: what came back before it is not taken twice": func(b setClock) {
			lease := b.lease(perSecond, 6, time.Hour)
			b.at(8 * s)
			b.settle(perSecond, lease, 4)
			b.at(8100 * ms)
			b.has(tenPer, 7, 300*ms)
		},
		"a settlement sets no date back": func(b setClock) {
			b.at(1005 * ms)
			lease := b.lease(perSecond, 5, time.Hour)
			b.at(1 * s)
			b.settle(perSecond, lease, 5)
			b.at(1005 * ms)
			b.has(tenPer, 5, 500*ms)
		},
		"a lease is settled at the price in the row": func(b setClock) {
			lease := b.lease(perSecond, 6, time.Hour)
			b.take(tenPer, 3)
			b.settle(perSecond, lease, 1)
			b.has(tenPer, 6, 400*ms)
		},
		"the settlement of one of two leases": func(b setClock) {
			first := b.lease(perSecond, 3, 10*s)
			b.at(1 * s)
			if second := b.leases(perSecond, 4, 1, 10*s, pglimit.Lease{}, 0); second.Tokens != 4 || !second.Until.Equal(first.Until) {
				b.Errorf("%+v: want 4 tokens until the first one ends, at %v", second, first.Until)
			}
			b.settle(perSecond, first, 1)
			b.has(perSecond, 5, 13*s)
			b.at(11 * s)
			b.has(perSecond, 7, 3*s)
		},
		"a lease settled a microsecond before its end": func(b setClock) {
			lease := b.lease(perSecond, 4, 10*s)
			b.at(10*s - us)
			b.settle(perSecond, lease, 0)
			b.has(perSecond, 10, 0)
		},
		"a lease settled at its end is spent": func(b setClock) {
			lease := b.lease(perSecond, 4, 10*s)
			b.at(10 * s)
			b.settle(perSecond, lease, 0)
			b.has(perSecond, 6, 4*s)
		},
		"a lease of another end is not known": func(b setClock) {
			lease := b.lease(perSecond, 4, 10*s)
			lease.Until = lease.Until.Add(-us)
			b.settle(perSecond, lease, 0)
			b.has(perSecond, 6, 14*s)
		},
		"a lease of more than is set aside is not known": func(b setClock) {
			lease := b.lease(perSecond, 4, 10*s)
			lease.Tokens = 5
			b.settle(perSecond, lease, 0)
			b.has(perSecond, 6, 14*s)
		},
		"an expired lease flows back from its end on": func(b setClock) {
			b.lease(perSecond, 4, 10*s)
			b.at(10 * s)
			b.has(perSecond, 6, 4*s)
			b.at(30 * s)
			b.has(perSecond, 10, 0)
			b.at(11 * s)
			b.has(perSecond, 7, 3*s)
			b.take(perSecond, 7)
			b.has(perSecond, 0, 10*s)
		},
		"an expired lease comes on top of what is owed then": func(b setClock) {
			b.take(perSecond, 8)
			b.lease(perSecond, 2, 3*s)
			b.at(4 * s)
			b.has(perSecond, 4, 6*s)
			b.take(perSecond, 1)
			b.has(perSecond, 3, 7*s)
		},
		"the end of a lease is a write: what came back before it is not taken twice": func(b setClock) {
			b.lease(perSecond, 10, 5*s)
			b.at(5500 * ms)
			b.has(tenPer, 5, 500*ms)
			b.take(tenPer, 1)
			b.has(tenPer, 4, 600*ms)
		},
		"tokens set aside keep their number under a cheaper limit": func(b setClock) {
			b.lease(perSecond, 6, time.Hour)
			b.has(tenPer, 4, time.Hour+600*ms)
			b.take(tenPer, 1)
			b.has(tenPer, 3, time.Hour+600*ms)
		},
		"tokens set aside keep their number under a dearer limit": func(b setClock) {
			b.lease(tenPer, 6, time.Hour)
			b.has(perSecond, 4, time.Hour+600*ms)
			b.take(perSecond, 1)
			b.has(perSecond, 3, time.Hour+6*s)
		},
		"a share is of what is left": func(b setClock) {
			for i, want := range []int64{3, 2, 1} {
				if got := b.leases(perSecond, 9, 3, time.Hour, pglimit.Lease{}, 0); got.Tokens != want {
					b.Errorf("lease %d: %d tokens, want %d", i, got.Tokens, want)
				}
			}
			b.has(perSecond, 4, time.Hour+6*s)
		},
		"no lease for less than a fifth of its time": func(b setClock) {
			first := b.lease(perSecond, 1, 10*s)
			b.at(8 * s)
			if second := b.leases(perSecond, 1, 1, 10*s, pglimit.Lease{}, 0); second.Tokens != 1 || !second.Until.Equal(first.Until) {
				b.Errorf("%+v: want a token until %v", second, first.Until)
			}
			b.at(8*s + us)
			if third := b.leases(perSecond, 1, 1, 10*s, pglimit.Lease{}, 0); third.Tokens != 0 {
				b.Errorf("%+v: want none", third)
			}
		},
		"a lease under another limit is a write at its price": func(b setClock) {
			b.take(perSecond, 3)
			b.lease(tenPer, 2, time.Hour)
			b.has(tenPer, 5, time.Hour+200*ms)
			b.at(100 * ms)
			b.has(perSecond, 6, time.Hour+100*ms)
		},
		"a lease is a write: what came back before it is not taken twice": func(b setClock) {
			b.take(perSecond, 10)
			b.at(8 * s)
			b.lease(perSecond, 1, time.Hour)
			b.at(8100 * ms)
			b.has(tenPer, 8, time.Hour)
		},
		"a take leaves a lease as it is": func(b setClock) {
			lease := b.lease(perSecond, 4, time.Hour)
			b.take(perSecond, 2)
			b.settle(perSecond, lease, 1)
			b.has(perSecond, 7, 3*s)
		},
		"when tokens are there beside a lease": func(b setClock) {
			b.take(perSecond, 5)
			b.lease(perSecond, 3, 10*s)
			b.retries(perSecond, 2, 0)
			b.retries(perSecond, 5, 3*s)  // before the lease ends
			b.retries(perSecond, 7, 5*s)  // all but what is set aside
			b.retries(perSecond, 8, 11*s) // the lease has ended, and a token come back
			b.retries(perSecond, 10, 13*s)
			b.retries(tenPer, 5, 300*ms)
			b.retries(tenPer, 8, 10100*ms)
			b.at(12 * s)
			b.retries(perSecond, 10, 1*s)
		},
		"no reservation of what is set aside": func(b setClock) {
			b.lease(perSecond, 4, time.Hour)
			b.take(perSecond, 6)
			b.reserve(perSecond, 6, 6*s)
			r := b.request(perSecond, 7)
			r.Ahead = 24 * time.Hour
			if d := b.ask(r); d.Granted != 0 {
				b.Errorf("7 tokens beside 4 that are set aside: %+v", d)
			}
		},
	}
}
