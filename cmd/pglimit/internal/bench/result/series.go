package result

// Point is what happened between the point before and this one. Latencies are in
// microseconds, and 0 where there was none.
type Point struct {
	// Seconds since the run began, at the end of the interval. The last ends with the last
	// answer, which may be after the end of the run.
	Seconds float64 `json:"s"`

	Granted   int64 `json:"granted"` // requests
	Denied    int64 `json:"denied"`  // contended ones included
	Contended int64 `json:"contended,omitempty"`
	Failed    int64 `json:"failed,omitempty"`

	Grants  PointLatency `json:"grant_us"`
	Denials PointLatency `json:"denial_us"`
}

// PointLatency of the decisions that came in one interval.
type PointLatency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}
