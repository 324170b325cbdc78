package pglimit

import (
	"math/rand/v2"
	"sync/atomic"
)

// Stats counts what a [Limiter] did since New: which stage answered, and what it
// cost. Every decision is counted in one of Remembered, Leased and Decided.
type Stats struct {
	Remembered int64 // decisions from the memory of denials, without a round trip
	Leased     int64 // decisions from a lease, without a round trip
	Decided    int64 // decisions that Postgres made

	RoundTrips int64 // calls of the strategy that made the Decided ones
	Requests   int64 // in those calls: identical requests of several callers are one
	LeaseTrips int64 // calls that fetched or settled a lease

	LeasedTokens   int64 // that leases set aside
	UnspentTokens  int64 // of those, that were given back or expired
	PassedOnTokens int64 // granted to callers who had left, and passed on to others
	GivenBack      int64 // tokens granted to callers who had left, and given back
	LostTokens     int64 // those that could not, or that a call took perhaps which failed
}

// Stats of all that was answered so far. They are read one after another, so while
// requests are under way they may differ by a few.
func (l *Limiter) Stats() Stats {
	c := &l.counters
	return Stats{
		Remembered:     c.remembered.sum(),
		Leased:         c.leased.sum(),
		Decided:        c.decided.Load(),
		RoundTrips:     c.roundTrips.Load(),
		Requests:       c.requests.Load(),
		LeaseTrips:     c.leaseTrips.Load(),
		LeasedTokens:   c.leasedTokens.Load(),
		UnspentTokens:  c.unspentTokens.Load(),
		PassedOnTokens: c.passedOn.Load(),
		GivenBack:      c.givenBack.Load(),
		LostTokens:     c.lost.Load(),
	}
}

// counters are what [Stats] is made of.
type counters struct {
	remembered, leased                        striped
	decided, roundTrips, requests, leaseTrips atomic.Int64
	leasedTokens, unspentTokens               atomic.Int64
	passedOn, givenBack, lost                 atomic.Int64
}

// striped counts what happens millions of times a second on all cores: on one memory
// cell they would wait for one another.
type striped [16]struct {
	atomic.Int64
	_ [56]byte // a cache line each
}

func (s *striped) add() { s[rand.Uint32()%uint32(len(s))].Add(1) }

func (s *striped) sum() (total int64) {
	for i := range s {
		total += s[i].Load()
	}
	return total
}
