package pglimit

import "sync/atomic"

// Stats counts what a [Limiter] did since New: which stage answered, and what it
// cost. Every decision of Postgres or a stage is counted in one of Remembered, Leased and Decided.
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
	s := Stats{
		Decided:    l.counters.alone.Load(),
		RoundTrips: l.counters.roundTrips.Load(),
		Requests:   l.counters.requests.Load(),
	}
	if l.denials != nil {
		s.Remembered = l.denials.Remembered.Load()
	}
	if l.leases != nil {
		of := &l.leases.Stats
		s.Leased, s.LeaseTrips = of.Leased.Load(), of.Trips.Load()
		s.LeasedTokens, s.UnspentTokens = of.LeasedTokens.Load(), of.UnspentTokens.Load()
	}
	if l.combiner != nil {
		of := &l.combiner.Stats
		s.Remembered += of.Remembered.Load()
		s.Decided += of.Decided.Load()
		s.PassedOnTokens, s.GivenBack, s.LostTokens = of.PassedOn.Load(), of.GivenBack.Load(), of.Lost.Load()
	}
	return s
}

// counters of round trips; the others are those of the stages.
type counters struct {
	roundTrips, requests atomic.Int64
	alone                atomic.Int64 // decisions of calls for one request each
}
