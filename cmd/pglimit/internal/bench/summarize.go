package bench

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// measured is a run as it was measured.
type measured struct {
	scenario  scenario.Scenario
	subject   scenario.Subject
	keys      []string
	recorders []*recorder
	timeline  *timeline
	elapsed   time.Duration
	drained   time.Duration // when the last answer had come, since the beginning
}

// summarize merges what the callers recorded.
func (m measured) summarize(auditDecisions int) result.Run {
	histories := make([]*history, 0, len(m.recorders))
	for _, r := range m.recorders {
		r.finish()
		histories = append(histories, &r.history)
	}
	total := m.timeline.total()
	run := result.Run{
		Scenario: m.scenario.Name, Strategy: m.subject.Strategy.Name(),
		Limit: m.subject.Limit.String(), Cost: m.subject.Costs[0].Tokens,
		Seconds:   round(m.elapsed.Seconds(), 3),
		Decisions: total.granted + total.denied, Allowed: total.granted, Denied: total.denied, Contended: total.contended,
		Granted: total.tokens,
		Errors:  map[string]int64{}, FirstErrors: map[string]string{},
		Stages: stagesOn(m.scenario.StagesFor(m.subject.Strategy)),
	}
	if m.elapsed > 0 {
		perSecond := func(n int64) float64 { return round(float64(n)/m.elapsed.Seconds(), 1) }
		run.GrantsPerSecond, run.DenialsPerSecond = perSecond(total.grantedInTime), perSecond(total.deniedIn)
		run.DecisionsPerSecond = perSecond(total.grantedInTime + total.deniedIn)
	}
	for kind, f := range total.errors {
		run.Errors[kind] = f.count
		if f.first != "" {
			run.FirstErrors[kind] = f.first
		}
	}
	all := newHistogram()
	for _, some := range []*hdrhistogram.Histogram{m.timeline.grants, m.timeline.denials, m.timeline.waits} {
		all.Merge(some)
	}
	run.Latency, run.GrantLatency, run.DenialLatency = latencyOf(all), latencyOf(m.timeline.grants), latencyOf(m.timeline.denials)
	run.Latency.Curve = nil // the two others have one
	if auditDecisions > 0 {
		told := collect(histories, m.keys, m.subject.Limit, m.subject.Costs)
		told.rule = m.subject.Strategy.Rule()
		audit := told.check()
		audit.Verdict = audit.Judge(run.Denied)
		audit.DenialSampling = round(audit.DenialSampling, 3)
		run.Audit = &audit
	}
	run.Series = m.series()
	return run
}

// series returns a point for each interval that began.
func (m measured) series() []result.Point {
	width := m.timeline.width
	slots := m.timeline.slots[:min(len(m.timeline.slots), int((m.elapsed+width-1)/width))] // fewer if interrupted
	points := make([]result.Point, 0, len(slots))
	for i := range slots {
		slot := &slots[i]
		end := min(time.Duration(i+1)*width, m.elapsed)
		if i+1 == len(slots) {
			// Up to the last answer, or those that came after the end would seem to have
			// come in a moment.
			end = max(end, m.drained)
		}
		p := result.Point{
			Seconds: round(end.Seconds(), 3),
			Granted: slot.granted, Denied: slot.denied, Failed: slot.failed(), Slowest: microseconds(int64(slot.slowest)),
		}
		points = append(points, p)
	}
	return points
}

func round(f float64, digits int) float64 {
	unit := math.Pow10(digits)
	return math.Round(f*unit) / unit
}

func ratio(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}
