package main

import (
	"strconv"
	"time"

	"github.com/pglimit/ratelimit/cleanup"
)

type reportJSON struct {
	Removed    int64               `json:"removed"` // rows
	Batches    int                 `json:"batches"`
	DurationMS float64             `json:"duration_ms"`
	Skipped    bool                `json:"skipped"` // another run is under way
	Strategies []sweptStrategyJSON `json:"strategies"`
}

type sweptStrategyJSON struct {
	Strategy   string  `json:"strategy"`
	Removed    int64   `json:"removed"`
	Batches    int     `json:"batches"`
	DurationMS float64 `json:"duration_ms"`
	Error      string  `json:"error,omitempty"`
}

func newReportJSON(r cleanup.Report) reportJSON {
	out := reportJSON{
		Removed:    r.Removed,
		Batches:    r.Batches,
		DurationMS: fractionalMS(r.Duration),
		Strategies: []sweptStrategyJSON{},
	}
	for _, s := range r.Strategies {
		row := sweptStrategyJSON{Strategy: s.Strategy, Removed: s.Removed, Batches: s.Batches,
			DurationMS: fractionalMS(s.Duration)}
		if s.Err != nil {
			row.Error = oneLine(s.Err)
		}
		out.Strategies = append(out.Strategies, row)
	}
	return out
}

func (r reportJSON) text() string {
	var rows [][]string
	add := func(name string, removed int64, batches int, ms float64) {
		took := time.Duration(ms * float64(time.Millisecond))
		rows = append(rows, []string{name, strconv.FormatInt(removed, 10), strconv.Itoa(batches), shortDuration(took)})
	}
	for _, s := range r.Strategies {
		add(s.Strategy, s.Removed, s.Batches, s.DurationMS)
	}
	add("total", r.Removed, r.Batches, r.DurationMS)
	return columns([]string{"STRATEGY", "REMOVED", "BATCHES", "TOOK"}, rows)
}

func fractionalMS(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
