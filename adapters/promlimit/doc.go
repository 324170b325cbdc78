// Package promlimit exports the metrics of Limiters to Prometheus.
//
//	prometheus.MustRegister(promlimit.New(limiter), promlimit.NewDatabase(pool, logger))
//
// [New] exports the numbers of [pglimit.Stats], read when Prometheus scrapes, and a histogram of the calls of Postgres.
// A decision from memory costs nothing more. The labels are limiter, strategy, and source, cause, action or operation
// and outcome; never the key, of which there may be millions. [NewDatabase] exports what the schema contains and costs
// the database, and [NewSemaphores] the permits of this process.
//
// deploy/grafana has a dashboard of them, and deploy/prometheus alert rules.
//
// Some queries:
//
//	# the part of the requests that is denied
//	sum by (limiter) (rate(pglimit_denied_total[5m])) / sum by (limiter) (rate(pglimit_denied_total[5m]) + rate(pglimit_allowed_total[5m]))
//	# the part of the requests that needs no round trip of its own
//	1 - sum(rate(pglimit_round_trips_total[5m])) / sum(rate(pglimit_denied_total[5m]) + rate(pglimit_allowed_total[5m]))
//	# failures, by cause
//	sum by (limiter, cause) (rate(pglimit_failed_total[5m]))
//	# the 99th percentile of a round trip, in seconds
//	histogram_quantile(0.99, sum by (limiter, le) (rate(pglimit_round_trip_duration_seconds_bucket{operation=~"take.*"}[5m])))
package promlimit
