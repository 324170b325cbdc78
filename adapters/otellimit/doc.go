// Package otellimit exports the metrics of Limiters to OpenTelemetry.
//
//	meter := otel.Meter("github.com/pglimit/ratelimit") // of your SDK's MeterProvider
//	registration, err := otellimit.Register(meter, limiter)
//
// [Register] exports the numbers of [pglimit.Stats], read when the SDK collects, and a histogram of the calls of
// Postgres. A decision from memory costs nothing more. The attributes are limiter, strategy, and source, cause, action
// or operation and outcome; never the key, of which there may be millions.
//
// Through OpenTelemetry's exporter for Prometheus, the metrics have the names and labels of package promlimit, so the
// dashboard and the alerts work with them. Then export the metrics of promlimit.NewDatabase with "pglimit cleanup
// --metrics".
package otellimit
