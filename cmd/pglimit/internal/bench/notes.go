package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/pglimit"
)

// notes say what a reader of the numbers should know, and would not see from them.
func (r Report) notes() []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if r.Interrupted {
		note("Interrupted: the last run is shorter than it was to be, or missing.")
	}
	for _, run := range r.Runs {
		if run.Audit.OverTokens > 0 {
			note("%s granted more than its limit allows: %s.", run.Strategy, run.Audit.Worst)
		}
	}
	if r.adapted() {
		note("Strategies that keep a burst of 1 only ran with the same rate and a burst of 1.")
	}
	if without := r.withoutLeases(); len(without) > 0 {
		note("Without leases, which they do not have: %s.", strings.Join(without, ", "))
	}
	if slices.ContainsFunc(r.Runs, func(run Result) bool { return run.Audit.DenialSampling > 1 }) {
		note("Where 1 denial of several was audited, as --audit has room, it was held against all grants: " +
			"a denial that was not due may have been missed, but none is reported that was due.")
	}
	for _, run := range r.Runs {
		notes = append(notes, run.notes(r.Config)...)
	}
	return notes
}

// withoutLeases names the strategies that ran without leases although leases were wanted.
func (r Report) withoutLeases() []string {
	var names []string
	for _, run := range r.Runs {
		if r.Config.Leases && !run.Stages.Leases {
			names = append(names, run.Strategy)
		}
	}
	return names
}

// notableErrors is the share of requests above which errors are pointed out.
const notableErrors = 0.01

func (r Result) notes(c Config) []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	a := r.Audit
	if c.AuditDecisions > 0 && !a.Complete {
		note("%s: there was no more room to keep every grant: the audit ends at that time, after %s; --audit keeps more.", r.Strategy, count(a.Grants))
	}
	if a.KeysWithLostAnswers > 0 {
		note("%s: an answer was lost that may have been a grant, of %s; later denials there are not judged.", r.Strategy, plural(a.KeysWithLostAnswers, "key"))
	}
	switch {
	case c.AuditDecisions > 0 && r.Stages.Leases:
		note("%s: grants only are audited: what is set aside in leases is denied to others although nobody has got it yet.", r.Strategy)
	case r.Verdict() == verdictNeverOver:
		note("%s: %s, so whether it denies only what is due is not known.", r.Strategy, r.whyNoDenialJudged())
	}
	if share := r.errorShare(); share > notableErrors {
		note("%s: %.1f %% of the requests ended in an error. They are not among the decisions, "+
			"but what they cost the server is in its numbers per decision.", r.Strategy, 100*share)
	}
	switch {
	case r.Server == nil:
		note("%s: the server could not be asked what it counted.", r.Strategy)
	case r.Server.Incomplete:
		note("%s: some connections had not reported their statistics yet: deadlocks, dead tuples and HOT updates may be more.", r.Strategy)
	}
	if r.Storage == unlogged && c.Durability == pglimit.Durable {
		note("%s: its table is unlogged, so that durable grants wait for no disk, and do not survive a crash.", r.Strategy)
	}
	if n := r.Errors[kindUnserved]; n > 0 {
		note("%s: %s arrivals were never sent, up to %v after the end. They are in the latencies with the time they had waited.", r.Strategy, count(n), drainTime)
	}
	if n := r.Errors[kindUnanswered]; n > 0 {
		note("%s: %s requests had no answer %v after the end and were given up. They are in the latencies with the time they had taken.", r.Strategy, count(n), drainTime)
	}
	if n := r.Errors[kindOverloaded]; n > 0 {
		note("%s: %s requests were turned away because as many as --max-waiting says waited already.", r.Strategy, count(n))
	}
	if n := r.Errors[kindTimeout]; n > 0 {
		note("%s: %s requests were given up after %v (--timeout). They are in the latencies with that time.", r.Strategy, count(n), c.Timeout)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.FirstErrors)) {
		note("%s, first error %s: %s", r.Strategy, kind, strings.Join(strings.Fields(r.FirstErrors[kind]), " "))
	}
	return notes
}

func (r Result) whyNoDenialJudged() string {
	switch r.Denied {
	case 0:
		return "nothing was denied (see --limit)"
	case r.Contended:
		return "all that was denied was contended (see --keys and --limit)"
	}
	return "its denials do not say when they were made"
}
