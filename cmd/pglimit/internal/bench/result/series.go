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

	RoundTrips     int64  `json:"trips"` // on the wire
	WALBytes       *int64 `json:"wal"`   // null here and below: the server could not be asked
	TransactionIDs *int64 `json:"xids"`
	Deadlocks      *int64 `json:"deadlocks"`
}

// PointLatency of the decisions that came in one interval.
type PointLatency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Interval is the time between two points, in seconds. 0: there is no series.
func (r Run) Interval() float64 {
	if len(r.Series) == 0 {
		return 0
	}
	return r.Series[0].Seconds
}

// KeyGrants is the most tokens that any one key was granted in each interval of the
// database's clock, beside what its limit allows in such an interval.
type KeyGrants struct {
	Interval float64 `json:"interval_s"`
	Bound    int64   `json:"bound"` // burst + tokens x interval / period, rounded down
	Most     []int64 `json:"most"`  // of any key, interval by interval
	Busiest  string  `json:"busiest"`
	Granted  int64   `json:"granted"` // tokens to the busiest key in all
	Keys     int     `json:"keys"`    // that were granted something
}
