// Package promlimit exports what Limiters do to Prometheus.
//
//	trips := promlimit.NewRoundTrips()
//	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", …, OnRoundTrip: trips.Observe})
//	…
//	prometheus.MustRegister(promlimit.New(limiter), trips)
//
// [New] exports the numbers of [pglimit.Stats], read when Prometheus scrapes: a request costs the
// same with and without it. Their labels are limiter, strategy, and source, cause or action; never the
// key, of which there may be millions. [NewRoundTrips] is a histogram of the calls of Postgres,
// for those who want one, [NewDatabase] exports what the schema costs the database, and [NewSemaphores]
// how many permits are held.
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
