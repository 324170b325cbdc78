package result

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
