package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is the outcome of [Run].
type Report struct {
	Config Config
	Server Server
	Runs   []Result

	// Interrupted: the context ended before everything was run. The last result may
	// then be of a shorter time.
	Interrupted bool
}

// Server that was measured.
type Server struct {
	Version string // as it says itself: "15.8 (Debian 15.8-1)"
	Source  string // names the database, in words
}

// Result of one strategy.
type Result struct {
	Strategy string
	Limit    string // may differ from Config.Limit, see there
	Adapted  bool   // the limit differs
	Cost     int64
	Elapsed  time.Duration
	Storage  string // of the table: logged or unlogged, empty if it is not known

	Decisions          int64 // Allowed + Denied
	DecisionsPerSecond float64

	Allowed   int64
	Denied    int64 // Contended included
	Contended int64

	// Errors by kind: SQLSTATE and name, or a word; and the first text of each.
	Errors      map[string]int64
	FirstErrors map[string]string

	Latency Latency
	Stages  Stages
	Server  *ServerSide // nil: not known, the server could not be asked
	Audit   Audit
}

// Latency of the requests that got a decision, and of the requests that were given up
// while they waited (timeout, unanswered, unserved), with the time until then: they would
// have taken longer. Zero: there was none.
type Latency struct{ P50, P90, P99, P999, Max time.Duration }

// ServerSide is what Postgres counted during the run. WAL and transaction ids are the
// whole server's, deadlocks the database's: others may have caused some.
type ServerSide struct {
	WALBytes, TransactionIDs, Deadlocks, DeadTuples int64

	Updates, HOTUpdates int64

	// Incomplete: some backends had not yet reported all that they did.
	Incomplete bool
}

// HOTRatio is the share of updates that touched no index; false if there were none.
func (s ServerSide) HOTRatio() (float64, bool) {
	return float64(s.HOTUpdates) / float64(s.Updates), s.Updates > 0
}

// Audit is the verdict on what the callers were told.
type Audit struct {
	// Audited decisions, the warm-up's included. Complete: all grants and, but for
	// the sampling, all denials; otherwise those up to some time.
	Audited  int64
	Complete bool

	// Grants and Denials are the audited ones. The write-up's statements do not say
	// when they denied, so their denials cannot be audited.
	Grants, Denials int64

	// DenialSampling: 1 of so many denials was audited, chosen at random. 1 is all of
	// them.
	DenialSampling float64

	// JudgedDenials are the audited ones that could be checked against the limit: not
	// contended, and no answer of that key was lost before.
	JudgedDenials int64

	// OverTokens is the worst over-admission of any key, in tokens; Worst tells
	// where it was.
	OverTokens int64
	Worst      string

	// DenialsNotDue were made although the tokens were there, contended ones aside.
	// After a lost answer, denials of that key are not judged.
	DenialsNotDue       int64
	KeysWithLostAnswers int
}

// OverAdmitted names the strategies that granted more than their limit.
func (r Report) OverAdmitted() []string {
	var names []string
	for _, run := range r.Runs {
		if run.Audit.OverTokens > 0 {
			names = append(names, run.Strategy)
		}
	}
	return names
}

// errorShare is how much of all requests ended in an error.
func (r Result) errorShare() float64 {
	var errors int64
	for _, n := range r.Errors {
		errors += n
	}
	return float64(errors) / float64(max(1, errors+r.Decisions))
}

// summarize merges what the callers recorded.
func summarize(p plan, c Config, recorders []*recorder, keys []string, elapsed time.Duration) Result {
	result := Result{
		Strategy: p.strategy.Name(), Limit: p.limit.String(), Adapted: p.limit != c.Limit, Cost: p.cost, Stages: c.stages(p),
		Elapsed: elapsed, Errors: map[string]int64{}, FirstErrors: map[string]string{},
	}
	all := newHistogram()
	histories := make([]*history, 0, len(recorders))
	var inTime int64
	for _, r := range recorders {
		all.Merge(r.latency)
		histories = append(histories, &r.history)
		inTime += r.inTime
		result.Allowed += r.allowed
		result.Denied += r.denied
		result.Contended += r.contended
		for kind, f := range r.errors {
			result.Errors[kind] += f.count
			if result.FirstErrors[kind] == "" && f.first != "" {
				result.FirstErrors[kind] = f.first
			}
		}
	}
	result.Decisions = result.Allowed + result.Denied
	if elapsed > 0 {
		result.DecisionsPerSecond = float64(inTime) / elapsed.Seconds()
	}
	if all.TotalCount() > 0 {
		result.Latency = latencyOf(all)
	}
	if c.AuditDecisions > 0 {
		result.Audit = check(histories, keys, p.limit, p.cost)
	}
	return result
}

func latencyOf(all *hdrhistogram.Histogram) Latency {
	quantile := func(percent float64) time.Duration { return time.Duration(all.ValueAtPercentile(percent)) }
	return Latency{quantile(50), quantile(90), quantile(99), quantile(99.9), time.Duration(all.Max())}
}
