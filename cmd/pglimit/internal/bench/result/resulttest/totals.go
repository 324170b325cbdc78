package resulttest

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// total adds to the run what follows from its series.
func (like shape) total(run *result.Run, wal, deadlocks, failed int64) {
	run.Decisions = run.Allowed + run.Denied
	run.Granted = run.Allowed * run.Cost
	run.GrantsPerSecond = float64(run.Allowed) / run.Seconds
	run.DenialsPerSecond = float64(run.Denied) / run.Seconds
	run.DecisionsPerSecond = run.GrantsPerSecond + run.DenialsPerSecond
	if failed > 0 {
		run.Errors = map[string]int64{"timeout": failed - deadlocks, "40P01 deadlock_detected": deadlocks}
		run.FirstErrors = map[string]string{"timeout": "context deadline exceeded"}
	}
	perDecision := round3(float64(wal) / float64(max(1, run.Decisions)))
	run.WALBytesPerDecision = &perDecision

	run.Latency = run.GrantLatency
	if run.Denied > run.Allowed {
		run.Latency = run.DenialLatency
	}
	run.Latency.Count = run.Decisions
	run.Latency.Mean = round3((run.GrantLatency.Mean*float64(run.Allowed) + run.DenialLatency.Mean*float64(run.Denied)) / float64(max(1, run.Decisions)))
	run.Latency.Max = max(run.GrantLatency.Max, run.DenialLatency.Max)

	run.Stages = result.Stages{
		Combining: like.stages, Memory: like.stages, Leases: like.stages,
		RememberedRatio: like.remembered,
	}
	audit := &result.Audit{
		Audited: run.Decisions, AuditedGrants: run.Allowed, AuditedDenials: run.Denied,
		Complete: true, JudgedDenials: run.Denied - run.Contended, DenialSampling: 1,
	}
	if like.remembered > 0 {
		audit.DenialSampling = 64
	}
	audit.Verdict = audit.Judge(run.Denied)
	run.Audit = audit
}

// latency of the whole run, from that of its intervals.
func latency(count int64, series []pointLatency) result.Latency {
	all := result.Latency{Count: count}
	if count == 0 {
		return result.Latency{}
	}
	var sum float64
	for _, l := range series {
		sum += l.mean * float64(l.count)
		all.P50 += l.p50 * float64(l.count) / float64(count)
		all.P99 = max(all.P99, l.p99)
		all.Max = max(all.Max, l.max)
	}
	all.Mean = round3(sum / float64(count))
	all.P50, all.P90 = round3(all.P50), round3(math.Sqrt(all.P50*all.P99))
	all.P999 = round3(math.Sqrt(all.P99 * all.Max))
	all.P9999 = round3(all.Max * 0.95)
	for _, percent := range []float64{0, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 96, 97, 98, 99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.93, 99.95, 99.97, 99.98, 99.99} {
		all.Curve = append(all.Curve, result.CurvePoint{Percent: percent, US: round3(at(all, percent))})
	}
	return all
}

// at is the latency at that percentile: between those that are known, a straight line
// over the logarithms of both.
func at(l result.Latency, percent float64) float64 {
	known := []struct{ percent, us float64 }{{0, l.P50 / 2.5}, {50, l.P50}, {90, l.P90}, {99, l.P99}, {99.9, l.P999}, {99.99, l.P9999}}
	rarity := func(percent float64) float64 { return -math.Log10(1 - percent/100) }
	for i := 1; i < len(known); i++ {
		from, to := known[i-1], known[i]
		if percent <= to.percent {
			share := (rarity(percent) - rarity(from.percent)) / (rarity(to.percent) - rarity(from.percent))
			return math.Exp(math.Log(from.us)*(1-share) + math.Log(to.us)*share)
		}
	}
	return l.Max
}
