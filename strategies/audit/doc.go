// Package audit checks what a limiter did against what its limit allows.
//
// The caller passes decisions, grants and denials, each with the time of the decision. The
// report says where more was granted than the limit allows (over), and which denials were not
// due (under). The package uses no database and no clock. It counts in nanoseconds and rounds
// only as the limit itself does: a token takes a whole number of nanoseconds to come
// back, rounded up.
//
//	var history audit.Histories
//	history.Record("user:42", tokens, unit, decision) // for each decision
//	report := history.Check(nil, limit) // nil: the rule of a token bucket
//	fmt.Println(report)                    // report.OK() for programs
//
// # Why the database's time is enough
//
// Each decision carries [pglimit.Decision].At, the database's time by which the bucket was
// refilled for it. The first promise is that in any span of time T at most
// Burst + Tokens × T / Period tokens are granted. It depends only on the grants and their
// times, so it can be checked without knowing which request waited for which: sort the
// grants by time and look at every span. One pass is enough, because the worst span that ends
// with a grant begins where the bucket was last full. The pass uses a bucket that never
// denies: each grant adds to its debt, time pays the debt back, and the limit is broken by as
// much as the debt exceeds the capacity.
//
// A strategy decides a bucket's grants one after another and never moves its time
// backwards. So grants sorted by time are in the order in which they were made, except
// grants of the same time, whose order changes no sum. A denial therefore saw at most
// the grants up to and including its own time. If these leave room for one more unit, the
// denial was not due. Grants of the same time, and grants that became visible just after the
// denial had looked, count in the denial's favour. So a denial that is reported is
// wrong; a denial that is not reported may have been wrong by that much.
//
// Each denial is checked against the grants alone. So if there are too many denials to keep,
// some may be left out: the reported ones are still wrong. Grants must not be left out.
//
// # What it does not see
//
//   - Decisions whose answer was lost (a timeout, a broken connection). If such a request
//     was granted, the report finds too little over the limit, and denials that the grant
//     caused look as if they were not due. Trust the verdict on denials only if every
//     answer arrived.
//   - Anything before the first decision, [pglimit.Limiter.Reset], a step of the clock,
//     and takes that were rolled back or that a crash of the server forgot. A history
//     begins with a full bucket.
//   - When a limit changed, unless [History.CheckHeld] is told. If there are several limits, Check
//     checks the grants against the looser ones, from the first event to the last.
//   - Whether At is true. A strategy that invents its times is believed. And callers get
//     their grants some time after the decisions, so they can see them closer together
//     than At says. A load test can compare At with the times at which each call began
//     and ended.
//   - Denials that the decision excuses as contended. They are only counted.
package audit
