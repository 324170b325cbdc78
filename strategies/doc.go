// Package strategies has the ways to decide a rate limit inside Postgres.
//
//	strategy            trips  locks                   rows                 limits     good at
//	TokenBucket         1      the row, for a grant    one per active key   any        everything; many keys in one call
//	Upsert              1      the row, for a grant    one per active key   any        no stored function needed on the way
//	ForUpdateNowait     2      a row, never waits      one per active key   any        never queueing behind a slow holder
//	ExclusionRange      1      an index entry          one per grant        burst = 1  letting a constraint vouch for the rule
//
// All four keep the same promises, which strategytest checks: never over the
// limit; no denial that was not due, but for [ForUpdateNowait] when another
// holds the row; a denial writes nothing; no deadlock. The first three count the
// same way and differ in how they go about it. Limiters of different strategies do
// not share buckets.
//
// A bucket is one number: the time at which it is full again, in nanoseconds. With a
// token that costs [rate.Limit.Token] and a bucket that fills in [rate.Limit.Window],
// n tokens are there if max(full, now) + n × token ≤ now + window, and taking them is
// full = max(full, now) + n × token. This is the token bucket in the form of GCRA (ATM
// Forum TM 4.0, the theoretical arrival time). Beside it stand two notes of the last
// write, its price of a token and its time, for the two cases in which full does not mean
// what it says: the limit has changed, or the clock has stepped back.
//
// Every strategy first reads the row without a lock (TokenBucket's call for several: all that it did not update): what
// that read shows may deny, never admit: meanwhile another call may take the tokens that it
// saw. Admission is decided while the row is locked. A
// take that hoped for tokens which went to another between its read and its lock has
// locked the row for nothing: on a busy key that happens, once per such take.
//
// What was granted and is not used can be given back (GiveBack), less what has flowed
// back in its stead meanwhile. [TokenBucket] can set tokens aside for a process
// (Lease): nobody else has them until they are settled or expire.
//
// Given a pgx.Tx, a take joins the caller's transaction and is undone with it. Of
// several takes in one such transaction, mind the order: two transactions that
// take from the same keys in different orders can deadlock, as with any rows.
// Decisions are made for READ COMMITTED; a stricter isolation level can
// make a take fail with a serialization error, which takes nothing.
package strategies

import (
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Strategy is what each strategy of this package can.
type Strategy interface {
	rate.Strategy
	rate.GiveBacker
	rate.Resetter
	rate.AllResetter
	rate.Sweeper
}

// All strategies, the one that most people want first.
func All() []Strategy {
	return []Strategy{TokenBucket{}, Upsert{}, ForUpdateNowait{}, ExclusionRange{}}
}

// ByName finds a strategy by its Name. The error lists the names there are.
func ByName(name string) (Strategy, error) {
	var names []string
	for _, s := range All() {
		if s.Name() == name {
			return s, nil
		}
		names = append(names, s.Name())
	}
	return nil, fmt.Errorf("strategies: there is no strategy %q, only %s", name, strings.Join(names, ", "))
}
