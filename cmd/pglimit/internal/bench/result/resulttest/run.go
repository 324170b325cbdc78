package resulttest

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// shape of a run: rates per second, latencies in microseconds.
type shape struct {
	strategy            string
	grants, denials     float64
	grantP50, denialP50 float64
	trips, wal          float64 // per decision
	contended           float64 // of all decisions
	deadlocks           int64
	failures            float64 // of all requests
	stages              bool
	remembered          float64              // of the denials
	at                  func(t float64) load // overrides the rates and latencies, if not nil
}

// load at one time of a run.
type load struct {
	grants, denials, failures float64 // per second
	grantP50, denialP50       float64
	deadlocks                 float64 // per second
}

// withStages makes of the shape what combining, memory and leases make of it.
func (like shape) withStages(by string) shape {
	like.stages = true
	like.contended /= 10
	if by == result.ByGrants {
		like.grants *= 2.4
		like.grantP50 /= 2
		like.trips /= 8
		like.wal /= 8
		return like
	}
	like.remembered = 0.995
	like.denials *= 90
	like.denialP50 = 0.4
	like.trips /= 90
	like.wal /= 90
	return like
}

func (like shape) load(t, seconds float64) load {
	if like.at != nil {
		return like.at(t)
	}
	all := like.grants + like.denials
	return load{
		grants: like.grants, denials: like.denials, failures: all * like.failures,
		grantP50: like.grantP50, denialP50: like.denialP50,
		deadlocks: float64(like.deadlocks) / seconds,
	}
}

// run of that shape in so many intervals.
func (like shape) run(s result.Scenario, round, points int) result.Run {
	p := s.Parameters
	run := result.Run{
		Scenario: s.Name, Round: round, Strategy: like.strategy, Limit: p.Limit, Cost: p.Cost,
		Storage: "unlogged", Seconds: p.DurationSeconds, Errors: map[string]int64{},
	}
	interval := p.DurationSeconds / float64(points)
	noise := noise{float64(round)*17 + float64(len(like.strategy))*5 + float64(len(s.Name))}
	var wal, deadlocks, failed int64
	var owed load // what the intervals before did not make whole
	for i := range points {
		t := float64(i) * interval
		now := like.load(t, p.DurationSeconds)
		wave := 1 + 0.06*noise.next()
		point := result.Point{
			Seconds: round3(t + interval),
			Granted: whole(now.grants*interval*wave, &owed.grants),
			Denied:  whole(now.denials*interval*wave, &owed.denials),
			Failed:  whole(now.failures*interval, &owed.failures),
		}
		point.Contended = int64(like.contended * float64(point.Granted+point.Denied))
		if point.Granted > 0 {
			point.Grants = pointLatency(now.grantP50, &noise)
		}
		if point.Denied > 0 {
			point.Denials = pointLatency(now.denialP50, &noise)
		}
		decisions := point.Granted + point.Denied

		run.Series = append(run.Series, point)
		run.Allowed += point.Granted
		run.Denied += point.Denied
		run.Contended += point.Contended
		run.RoundTrips += int64(like.trips * float64(decisions+point.Failed))
		wal += int64(like.wal * float64(decisions))
		deadlocks += whole(now.deadlocks*interval, &owed.deadlocks)
		failed += point.Failed
	}
	like.total(&run, wal, deadlocks, failed)
	return run
}

// whole takes the whole part of what is there and of what was owed, and owes the rest.
func whole(there float64, owed *float64) int64 {
	*owed += there
	n := math.Floor(*owed)
	*owed -= n
	return int64(n)
}

func pointLatency(p50 float64, noise *noise) result.PointLatency {
	p50 *= 1 + 0.05*noise.next()
	spread := 1 + 0.3*noise.next()
	const timeout = 3e6
	return result.PointLatency{
		Mean: round3(p50 * 1.15), P50: round3(p50),
		P99: round3(min(timeout, p50*3.2*spread)), Max: round3(min(timeout, p50*9*spread*spread)),
	}
}

// noise between -1 and 1, the same each time.
type noise struct{ at float64 }

func (n *noise) next() float64 {
	n.at++
	return math.Sin(n.at*12.9898) * math.Cos(n.at*4.1414)
}

func round3(f float64) float64 { return math.Round(f*1000) / 1000 }
