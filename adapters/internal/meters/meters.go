// Package meters is what the metrics adapters export besides the numbers of pglimit.Stats.
package meters

import (
	"math"

	"github.com/pglimit/ratelimit/pglimit"
)

// Setting is a gauge of a Limiter's configuration.
type Setting struct {
	Name, Unit, Help string
	Value            func(pglimit.Config) float64
}

// Settings that are exported.
var Settings = []Setting{
	{"limit.tokens_per_second", "", "The limit of each key: tokens that come back in a second.",
		func(c pglimit.Config) float64 { return float64(c.Limit.Tokens) / c.Limit.Period.Seconds() }},
	{"limit.burst_tokens", "", "The limit of each key: tokens that can be taken at once.",
		func(c pglimit.Config) float64 { return float64(c.Limit.Burst) }},
	{"timeout", "s", "The time limit of a decision.", timeout},
	{"max_waiting", "", "How many requests may wait for an answer at once.",
		func(c pglimit.Config) float64 { return float64(c.MaxWaiting) }},
}

// timeout in seconds, or +Inf if there is none.
func timeout(c pglimit.Config) float64 {
	if c.Timeout == pglimit.NoTimeout {
		return math.Inf(1)
	}
	return c.Timeout.Seconds()
}

// RoundTrips is the help of the histogram of round trips.
const RoundTrips = "Calls of the strategy, from the call to the answer, with the wait for a connection."

// Buckets of that histogram, in seconds.
var Buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
