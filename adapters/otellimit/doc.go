// Package otellimit exports what Limiters do to OpenTelemetry.
//
//	meter := otel.Meter("github.com/pglimit/ratelimit") // of your SDK's MeterProvider
//	registration, err := otellimit.Register(meter, limiter)
//
// [Register] exports the numbers of [pglimit.Stats], read when the SDK collects, and a histogram of the calls of
// Postgres: a decision from memory costs the same with and without it. The attributes are limiter, strategy, and source,
// cause, action or operation and outcome; never the key, of which there may be millions.
//
// Through OpenTelemetry's exporter for Prometheus the metrics have the names and labels that package promlimit gives
// them, so that the dashboard and the alerts show them. What promlimit.NewDatabase exports comes from "pglimit cleanup
// --metrics" then.
package otellimit
