package integration

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

func pricesOnSetClock() map[string]func(b setClock) {
	const s, ms, us = time.Second, time.Millisecond, time.Microsecond
	return map[string]func(b setClock){
		"under a faster limit it flows back as fast since the last write": func(b setClock) {
			b.take(perSecond, 10)
			b.has(tenPer, 0, 1*s)
			b.at(500 * ms)
			b.has(tenPer, 5, 500*ms)
			b.retries(tenPer, 8, 300*ms)
			b.at(2 * s)
			b.has(tenPer, 10, 0)
			b.has(perSecond, 2, 8*s)
		},
		"under a slower limit it flows back as fast as before": func(b setClock) {
			b.take(tenPer, 10)
			b.at(500 * ms)
			b.has(perSecond, 5, 500*ms)
			b.retries(perSecond, 8, 300*ms)
			b.take(perSecond, 1)
			b.has(perSecond, 4, 6*s)
		},
		"what is used is rounded up": func(b setClock) {
			b.take(threePer, 1)
			b.at(100 * ms)
			b.take(perSecond, 1) // 0.7000000006 tokens are owed
			b.has(perSecond, 8, 1700*ms+us)
		},
		"when it is full is rounded up": func(b setClock) {
			b.take(threePer, 1)
			b.at(100 * ms)
			b.take(threePer, 1)
			b.has(tenPer, 8, 170*ms+us) // 1.7000000006 tokens
			b.retries(tenPer, 10, 170*ms+us)
		},
		"a take under another limit is dated now": func(b setClock) {
			b.take(tenPer, 1)
			b.at(5 * s)
			b.take(perSecond, 1)
			b.at(5050 * ms)
			b.has(tenPer, 9, 50*ms)
		},
		"a take sets no date back": func(b setClock) {
			b.at(5 * ms)
			b.take(tenPer, 3)
			b.at(0)
			b.take(perSecond, 1)
			b.at(5 * ms)
			b.has(tenPer, 6, 400*ms)
		},
	}
}

func stepsBackOnSetClock() map[string]func(b setClock) {
	const s, ms = time.Second, time.Millisecond
	return map[string]func(b setClock){
		"it owes what it owed": func(b setClock) {
			b.at(time.Hour)
			b.take(perSecond, 4)
			b.at(0)
			b.has(perSecond, 6, 4*s)
			b.has(tenPer, 6, 400*ms)
			b.denies(perSecond, 7)
			b.at(1 * s)
			b.has(perSecond, 7, 3*s)
		},
		"a lease lasts as long as it would have": func(b setClock) {
			b.at(time.Hour)
			b.lease(perSecond, 4, 10*s)
			b.at(0)
			b.has(perSecond, 6, 14*s)
			b.take(perSecond, 1)
			b.at(9 * s)
			b.has(perSecond, 6, 5*s)
			b.at(10 * s)
			b.has(perSecond, 6, 4*s)
		},
		"a denial under another limit moves the row, and keeps its price": func(b setClock) {
			b.at(time.Hour)
			b.take(perSecond, 10)
			b.at(0)
			b.denies(tenPer, 1)
			b.at(2 * s)
			b.has(perSecond, 2, 8*s)
		},
		"a lease of nothing under another limit moves the row, and keeps its price": func(b setClock) {
			b.at(time.Hour)
			b.take(perSecond, 10)
			b.at(0)
			b.leases(tenPer, 0, 1, s, pglimit.Lease{}, 0)
			b.at(2 * s)
			b.has(perSecond, 2, 8*s)
		},
		"a row that is 10 ms ahead is no step": func(b setClock) {
			b.at(10 * ms)
			b.lease(perSecond, 3, time.Hour)
			b.at(0)
			b.take(perSecond, 1)
			b.at(1 * s)
			b.has(perSecond, 6, time.Hour+3*s-990*ms)
		},
		"a row that is more than 10 ms ahead is one": func(b setClock) {
			b.at(10*ms + time.Microsecond)
			b.lease(perSecond, 3, time.Hour)
			b.at(0)
			b.take(perSecond, 1)
			b.at(1 * s)
			b.has(perSecond, 7, time.Hour+3*s-1*s)
		},
	}
}

func refundsOnSetClock() map[string]func(b setClock) {
	const s, ms = time.Second, time.Millisecond
	return map[string]func(b setClock){
		"all of it at once": func(b setClock) {
			b.refund(perSecond, 4, b.take(perSecond, 4))
			b.has(perSecond, 10, 0)
		},
		"less what has flowed back since": func(b setClock) {
			d := b.take(perSecond, 9)
			b.at(3 * s)
			b.refund(perSecond, 4, d)
			b.has(perSecond, 5, 5*s)
		},
		"nothing, where all has flowed back": func(b setClock) {
			d := b.take(perSecond, 2)
			b.at(5 * s)
			b.take(perSecond, 9)
			b.refund(perSecond, 2, d)
			b.has(perSecond, 1, 9*s)
		},
		"nothing, under another limit of nearly the same rate": func(b setClock) {
			d := b.take(perSecond, 5)
			nearly := perSecond
			nearly.Period += ms
			b.take(nearly, 1)
			b.refund(perSecond, 5, d)
			b.has(nearly, 4, 6*nearly.Period)
		},
		"nothing to a window, in which a token costs a nanosecond": func(b setClock) {
			byNanosecond, month := pglimit.PerSecond(pglimit.MaxRate).WithBurst(1e17), pglimit.PerMonth(1000).In("Europe/Berlin")
			d := b.take(byNanosecond, 500)
			b.take(month, 1)
			b.refund(byNanosecond, 500, d)
			if d := b.peek(month, 1); d.Remaining != 499 {
				b.Errorf("%+v, want 499 tokens", d)
			}
		},
		"nothing to a bucket of another limiter": func(b setClock) {
			other := b.request(perSecond, 5)
			other.Limiter = "a test"
			d := b.ask(other)
			b.at(5 * s)
			b.refund(perSecond, 2, b.take(perSecond, 4))
			b.refund(perSecond, 5, d) // of which 5 s have flowed back
			b.has(perSecond, 8, 2*s)
		},
		"what was taken behind a reservation keeps its time": func(b setClock) {
			first := b.take(perSecond, 10)
			second := b.reserve(perSecond, 5, 5*s)
			b.refund(perSecond, 10, first)
			b.has(perSecond, 0, 10*s)
			b.refund(perSecond, 5, second)
			b.has(perSecond, 5, 5*s)
		},
		"a reservation with nothing behind it, all of it": func(b setClock) {
			b.take(perSecond, 10)
			b.refund(perSecond, 20, b.reserve(perSecond, 20, 20*s))
			b.has(perSecond, 0, 10*s)
		},
		"a burst at most of a large reservation with another behind it": func(b setClock) {
			b.take(perSecond, 10)
			large := b.reserve(perSecond, 20, 20*s)
			b.reserve(perSecond, 1, 21*s)
			b.refund(perSecond, 20, large)
			b.has(perSecond, 0, 22*s)
		},
		"what was taken beside a lease keeps its time": func(b setClock) {
			b.lease(perSecond, 4, time.Hour)
			first := b.take(perSecond, 6)
			b.reserve(perSecond, 2, 2*s)
			b.refund(perSecond, 6, first)
			b.has(perSecond, 2, time.Hour+4*s)
		},
		"nothing of a grant from before a step back": func(b setClock) {
			b.at(20 * s)
			d := b.take(perSecond, 10)
			b.at(0)
			b.denies(perSecond, 1)
			b.refund(perSecond, 10, d)
			b.has(perSecond, 0, 10*s)
		},
		"a row a little ahead is no step": func(b setClock) {
			b.at(5 * ms)
			d := b.take(perSecond, 4)
			b.at(0)
			b.refund(perSecond, 4, d)
			b.has(perSecond, 10, 0)
		},
		"up to the last write, if that is ahead, it flowed back": func(b setClock) {
			d := b.take(perSecond, 4)
			b.at(5 * ms)
			b.take(perSecond, 1)
			b.at(0)
			b.refund(perSecond, 4, d)
			b.at(5 * ms)
			b.has(perSecond, 9, 1*s)
		},
	}
}
