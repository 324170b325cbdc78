package rate

import "time"

// Rule is how a bucket fills. Whoever holds a decision asks it what the decision says of other
// requests and of later times: the memory of denials, leases, and the stage that combines requests.
//
// A decision is one about a request for units of unit tokens, by a strategy of this rule, and names
// its Limit. n is the Unit of another request for the same bucket, under the same limit.
//
// A Rule is safe for concurrent use.
type Rule interface {
	// Later returns the decision as it would read for the other request when that time has passed,
	// if nobody else took anything, and the bucket had that many more tokens. If others have set
	// tokens aside, RetryAfter may be too long, and Remaining too small, but not the reverse.
	//
	// Allowed and Granted stay as they are.
	Later(decision Decision, unit, n int64, passed time.Duration, more int64) Decision

	// Denies says whether the other request is denied for sure as long as no more time than that has
	// passed, and Later says exactly what it would be told. It is false if the decision does not say
	// so much. For n == unit, RetryAfter says it; but where Postgres counts denials, no later one may be
	// answered without it, and Denies is always false.
	Denies(decision Decision, unit, n int64, passed time.Duration) bool
}

// Apart is a Rule whose tokens do not come back one [Limit.Token] after another. Requests for one bucket are not
// combined into one, because its Decision could not say when each may use its tokens.
type Apart interface {
	Rule
	Apart()
}
