package resulttest

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
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
	if by == scenario.ByGrants {
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
	length := s.Length().Seconds()
	run := result.Run{
		Scenario: s.Name, Round: round, Strategy: like.strategy, Limit: s.Limit.String(), Cost: s.Costs[0].Tokens,
		Storage: "unlogged", Seconds: length, Errors: map[string]int64{},
	}
	interval := length / float64(points)
	noise := noise{float64(round)*17 + float64(len(like.strategy))*5 + float64(len(s.Name))}
	var wal, deadlocks, failed int64
	var owed load // what the intervals before did not make whole
	var grants, denials []pointLatency
	for i := range points {
		t := float64(i) * interval
		now := like.load(t, length)
		wave := 1 + 0.06*noise.next()
		point := result.Point{
			Seconds: round3(t + interval),
			Granted: whole(now.grants*interval*wave, &owed.grants),
			Denied:  whole(now.denials*interval*wave, &owed.denials),
			Failed:  whole(now.failures*interval, &owed.failures),
		}
		var granted, denied pointLatency
		if point.Granted > 0 {
			granted = latencyAround(now.grantP50, point.Granted, &noise)
		}
		if point.Denied > 0 {
			denied = latencyAround(now.denialP50, point.Denied, &noise)
		}
		grants, denials = append(grants, granted), append(denials, denied)
		point.Slowest = max(granted.max, denied.max)
		decisions := point.Granted + point.Denied

		run.Series = append(run.Series, point)
		run.Allowed += point.Granted
		run.Denied += point.Denied
		run.Contended += int64(like.contended * float64(decisions))
		run.RoundTrips += int64(like.trips * float64(decisions+point.Failed))
		wal += int64(like.wal * float64(decisions))
		deadlocks += whole(now.deadlocks*interval, &owed.deadlocks)
		failed += point.Failed
	}
	run.GrantLatency, run.DenialLatency = latency(run.Allowed, grants), latency(run.Denied, denials)
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

// pointLatency of the decisions of one interval, in microseconds.
type pointLatency struct {
	count               int64
	mean, p50, p99, max float64
}

func latencyAround(p50 float64, count int64, noise *noise) pointLatency {
	p50 *= 1 + 0.05*noise.next()
	spread := 1 + 0.3*noise.next()
	const timeout = 3e6
	return pointLatency{
		count: count, mean: round3(p50 * 1.15), p50: round3(p50),
		p99: round3(min(timeout, p50*3.2*spread)), max: round3(min(timeout, p50*9*spread*spread)),
	}
}

// noise between -1 and 1, the same each time.
type noise struct{ at float64 }

func (n *noise) next() float64 {
	n.at++
	return math.Sin(n.at*12.9898) * math.Cos(n.at*4.1414)
}

func round3(f float64) float64 { return math.Round(f*1000) / 1000 }
