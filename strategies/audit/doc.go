// Package audit checks what a limiter did against what its limit allows.
//
// It is given decisions, granted and denied, each with the time at which it was
// made, and says where more was granted than the limit allows (never over) and
// which denials were not due (not under). It is pure: no database, no clock, and
// no rounding but that of the limit itself: a token takes a whole number of nanoseconds
// to come back, rounded up. Everything is counted in nanoseconds.
//
//	var history audit.Histories
//	history.Record("user:42", request, decision) // for each decision
//	report := history.Check(limit)
//	fmt.Println(report)                          // report.OK() for programs
//
// # Why the database's time is enough
//
// Each decision carries [pglimit.Decision].At, the database's time by which the
// bucket was refilled for it. The first promise, that in any span of time T at
// most Burst + Tokens × T / Period tokens are granted, speaks of grants and
// that time and of nothing else, so it can be checked without knowing who waited
// for whom: sort the grants by time and look at every span. One pass does, because
// the worst span that ends with a grant begins where the bucket was last full.
// That pass is a bucket that never says no: each grant adds to its debt, time
// pays back, and the limit is broken by as much as the debt exceeds the capacity.
//
// A strategy decides a bucket's grants one after another and never moves its time
// backwards, so sorted by time they are in the order in which they were made, but
// for grants of one moment, whose order changes no sum. What a denial
// saw is therefore no more than the grants up to its time, its own moment
// included, and if those leave room for one more unit, the denial was not due.
// Grants of the same moment, and grants that became visible just after the
// denial had looked, count in the denial's favour: a denial that is reported is
// wrong, one that is not may have been wrong by that much.
//
// A denial is held against the grants alone. So denials may be left out, if there are too
// many to keep: what is reported is wrong all the same. Grants must not be.
//
// # What it does not see
//
//   - Decisions whose answer was lost (a timeout, a broken connection). If such a
//     request was granted, the over-admission found is too small by it, and
//     denials that it caused look as if they were not due. Read the second verdict
//     only where every answer arrived.
//   - Anything before the first decision, [pglimit.Limiter.Reset], a step of the clock,
//     and takes that were rolled back or that a crash of the server forgot. A history
//     begins with a full bucket.
//   - When a limit changed. Of several limits, only the looser are held against the
//     grants, from end to end.
//   - Whether At is true. Grants travel to their callers after they were made,
//     so a caller can see them closer together than they were; and a strategy that
//     invented its times would be believed. Whoever runs the load can hold At against
//     the times at which the calls began and ended.
//   - Denials that the decision excuses as contended. They are counted, no more.
package audit
