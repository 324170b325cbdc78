// Package pglimit is the front door of an exact rate limiter whose only
// infrastructure is PostgreSQL.
//
// A [Limiter] is a named limit over a database. It asks a [Strategy], from the
// package strategies beside this one, to decide; the decision is made inside
// Postgres, by Postgres's clock, so any number of processes share one limit
// without talking to one another.
//
//	pool, err := pgxpool.New(ctx, url)
//	err = migrations.Up(ctx, pool)
//	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{
//		Name:  "api",
//		Limit: pglimit.PerSecond(10).WithBurst(20),
//	})
//	d, err := limiter.Allow(ctx, "user:42")
//	if err == nil && !d.Allowed {
//		// come back after d.RetryAfter
//	}
//
// For one limiter and key, in any span of time T by the database's clock, at
// most Burst + Tokens × T / Period tokens are granted, whatever the
// concurrency. And a request is denied only if the tokens were not there (or, with
// ForUpdateNowait, if somebody else held the row).
//
// Package rate defines the types that a Limiter shares with strategies, and explains their
// fields and methods: go doc github.com/pglimit/ratelimit/pglimit/rate.Decision.
//
// # Stages
//
// Between the Limiter and the strategy a request passes stages. Each is a package below
// internal; road.go calls them in order:
//
//   - Leases (off): tokens of a busy key are fetched in advance and spent without asking.
//
//   - Memory of denials (on): a decision says when the next token comes. Until then
//     the key is denied without asking Postgres again.
//
//   - Circuit breaker (on): while Postgres does not answer, requests fail at once.
//
//   - Combining (on): while a call is under way, requests queue up. They go out together
//     when it returns. The more callers, the less a decision costs.
//
// Groups of [Limiter.DoAll] are combined with each other, and spend no lease. A request with
// an ID, and with [Config].Block any, passes the breaker and goes out by itself.
//
// The stages call Postgres from goroutines of their own, which end when nobody waits, and at
// [Limiter.Close]. [Limiter.Stats] says what each stage did, [Decision].Source which one
// answered. In a transaction of the caller's ([Limiter.On]) a request passes no stage.
//
// A denial is a decision. An error means that no decision is known: [Config.OnError] chooses
// what happens then, and [Limiter.Stats] counts it by [Cause].
package pglimit
