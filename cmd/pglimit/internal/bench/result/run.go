package result

import "math"

// Run is one strategy under one scenario, once.
type Run struct {
	Scenario string `json:"scenario"` // its name
	Round    int    `json:"round"`    // 1 is the first of those that are repeated

	Strategy string  `json:"strategy"`
	Limit    string  `json:"limit"`   // differs from the scenario's if the strategy keeps a burst of 1 only
	Cost     int64   `json:"cost"`    // of one request; the first of several
	Storage  string  `json:"storage"` // of the table: logged or unlogged
	Seconds  float64 `json:"seconds"` // how long it ran

	Decisions          int64   `json:"decisions"` // Allowed + Denied
	DecisionsPerSecond float64 `json:"decisions_per_second"`
	GrantsPerSecond    float64 `json:"grants_per_second"`
	DenialsPerSecond   float64 `json:"denials_per_second"` // contended ones included

	Allowed   int64 `json:"allowed"`
	Denied    int64 `json:"denied"` // Contended included
	Contended int64 `json:"contended"`
	Granted   int64 `json:"granted_tokens"`

	// Errors by kind: SQLSTATE and name, or a word; and the first text of each.
	Errors      map[string]int64  `json:"errors"`
	FirstErrors map[string]string `json:"first_errors,omitempty"`

	// Latency of decisions, and of requests that were given up while they waited, with the
	// time until then. Grants and denials apart: those that were decided.
	Latency       Latency `json:"latency_us"`
	GrantLatency  Latency `json:"grant_latency_us"`
	DenialLatency Latency `json:"denial_latency_us"`

	Stages Stages `json:"stages"`

	// RoundTrips are those on the wire, of all that the load's connections did.
	RoundTrips int64 `json:"wire_round_trips"`

	// WAL is the whole server's: others may have written some.
	WALBytesPerDecision *float64 `json:"wal_bytes_per_decision"`

	Audit *Audit `json:"audit"` // null: switched off

	// Over time. Empty: switched off.
	Series []Point `json:"series,omitempty"`
}

// Point is what happened between the point before and this one.
type Point struct {
	// Seconds since the run began, at the end of the interval. The last ends with the last
	// answer, which may be after the end of the run.
	Seconds float64 `json:"s"`

	Granted int64 `json:"granted"` // requests
	Denied  int64 `json:"denied"`  // contended ones included
	Failed  int64 `json:"failed,omitempty"`

	Slowest float64 `json:"slowest_us"` // of the decisions; 0: there was none
}

// Latency in microseconds. The zero value: there was none.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	P9999 float64 `json:"p9999"`
	Max   float64 `json:"max"`

	// Curve is the latency at rising percentiles, from 0 to 99.99.
	Curve []CurvePoint `json:"curve,omitempty"`
}

// CurvePoint says that Percent of 100 were no slower than US microseconds.
type CurvePoint struct {
	Percent float64 `json:"percent"`
	US      float64 `json:"us"`
}

// Stages says which stages the run had, and what each came to.
type Stages struct {
	Combining            bool    `json:"combining"`
	Memory               bool    `json:"memory"`
	Leases               bool    `json:"leases"`
	RememberedRatio      float64 `json:"remembered_ratio"` // decisions from the memory of denials
	LeasedRatio          float64 `json:"leased_ratio"`     // decisions from a lease
	CallersPerRoundTrip  float64 `json:"callers_per_round_trip"`
	RequestsPerRoundTrip float64 `json:"requests_per_round_trip"` // identical requests of several callers are one
}

// Audit is the verdict on what the callers were told.
type Audit struct {
	Verdict       string `json:"verdict"`
	OverTokens    int64  `json:"over_tokens"`     // the worst over-admission of any key
	Worst         string `json:"worst,omitempty"` // where it was
	DenialsNotDue int64  `json:"denials_not_due"` // made although the tokens were there, contended ones aside

	// Audited decisions, the warm-up's included. Complete: all grants and, but for the
	// sampling, all denials; otherwise those up to some time.
	Audited        int64 `json:"audited"`
	AuditedGrants  int64 `json:"audited_grants"`
	AuditedDenials int64 `json:"audited_denials"`
	Complete       bool  `json:"complete"`

	// JudgedDenials are the audited ones that could be checked against the limit: not
	// contended, and no answer of that key was lost before.
	JudgedDenials int64 `json:"judged_denials"`

	// DenialSampling: 1 of so many denials was audited, chosen at random. 1 is all.
	DenialSampling      float64 `json:"denial_sampling"`
	KeysWithLostAnswers int     `json:"keys_with_lost_answers"`
}

// Deadlock is the kind of error of a request that Postgres failed to end a deadlock.
const Deadlock = "40P01 deadlock_detected"

// Failed is how many requests ended in an error.
func (r Run) Failed() int64 {
	var n int64
	for _, count := range r.Errors {
		n += count
	}
	return n
}

// FailedShare of all requests.
func (r Run) FailedShare() float64 {
	failed := r.Failed()
	return float64(failed) / float64(max(1, failed+r.Decisions))
}

// TripsPerDecision counts round trips on the wire.
func (r Run) TripsPerDecision() float64 { return perDecision(r.RoundTrips, r.Decisions) }

// ContendedShare of all decisions.
func (r Run) ContendedShare() float64 { return perDecision(r.Contended, r.Decisions) }

func perDecision(n, decisions int64) float64 {
	if decisions == 0 {
		return 0
	}
	return float64(n) / float64(decisions)
}

// WALPerDecision in bytes. NaN: it is not known.
func (r Run) WALPerDecision() float64 {
	if r.WALBytesPerDecision == nil {
		return math.NaN()
	}
	return *r.WALBytesPerDecision
}

// Known is a figure of the latency. NaN: there is none, because nothing had it.
func (l Latency) Known(us float64) float64 {
	if l.Count == 0 {
		return math.NaN()
	}
	return us
}
