// Package otellimit exports what Limiters do to OpenTelemetry.
//
//	meter := otel.Meter("github.com/pglimit/ratelimit") // of your SDK's MeterProvider
//	trips, err := otellimit.NewRoundTrips(meter)
//	…
//	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", …, OnRoundTrip: trips.Record})
//	…
//	registration, err := otellimit.Register(meter, limiter)
//
// [Register] exports the numbers of [pglimit.Stats], read when the SDK collects: a request costs
// the same with and without it. Their attributes are pglimit.limiter, pglimit.strategy, and
// pglimit.source or pglimit.cause; never the key, of which there may be millions.
// [NewRoundTrips] is a histogram of the calls of Postgres, for those who want one.
//
// Through OpenTelemetry's exporter for Prometheus the metrics have the names that package
// promlimit gives them; their labels begin with pglimit_.
package otellimit
