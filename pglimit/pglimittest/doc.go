// Package pglimittest lets you test code that uses a [pglimit.Limiter] without a database, and
// without waiting: [Memory] is a strategy that decides in memory, by a clock that the test moves.
//
//	memory := pglimittest.Memory()
//	limiter, err := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1)})
//	handler := yours.NewHandler(limiter)
//	// one request is let through, the next is not
//	memory.Advance(time.Second)
//	// one more is let through
//
// What a test may want besides:
//
//   - What has been taken, and from which key: limiter.Peek(ctx, key), which takes nothing.
//   - An outage: memory.Fail(pglimit.ErrUnavailable), and memory.Fail(nil) when it is over.
//   - A full bucket again: limiter.Reset, limiter.ResetAll, or another Memory.
//   - To see the requests, or fail some of them: a type of yours that embeds *Strategy and has
//     another Take.
//   - A caller who waits, by Limiter.Wait: it sleeps by the clock of this process, which Advance does
//     not move. Take MemoryOn(time.Now) inside testing/synctest, as below.
//   - The limiter as it runs in production, with its stages: see [MemoryOn].
//
// A test of code that waits:
//
//	synctest.Test(t, func(t *testing.T) {
//		limiter, err := pglimittest.New(pglimittest.MemoryOn(time.Now), pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1), MaxWait: time.Minute})
//		_, err = limiter.Wait(t.Context(), "k") // at once
//		_, err = limiter.Wait(t.Context(), "k") // after a second of the bubble, which passes at once
//	})
//
// The decisions are those of strategies.TokenBucket, to the microsecond: both are computed by
// the same arithmetic, and Memory passes the conformance suite, strategytest, except for what
// is about Postgres itself. There is no transaction, no lock and no crash: a [pglimit.Session] is
// ignored. So what is taken through limiter.On stays taken when that transaction is rolled back.
package pglimittest
