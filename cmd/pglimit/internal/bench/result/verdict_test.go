package result

import "testing"

func TestVerdictSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	whole := Audit{Audited: 10, AuditedGrants: 4, AuditedDenials: 6, JudgedDenials: 6, DenialSampling: 1, Complete: true}
	for name, c := range map[string]struct {
		change func(*Audit)
		denied int64
		want   string
	}{
		"everything was compared":              {func(*Audit) {}, 6, "exact"},
		"nothing was denied":                   {func(a *Audit) { a.AuditedDenials, a.JudgedDenials = 0, 0 }, 0, "exact"},
		"nothing was denied, sampling is told": {func(a *Audit) { a.AuditedDenials, a.JudgedDenials, a.DenialSampling = 0, 0, 64 }, 0, "exact"},
		"denied in the warm-up only, excused":  {func(a *Audit) { a.JudgedDenials = 0 }, 0, "never over"},
		"all denials were contended":           {func(a *Audit) { a.JudgedDenials = 0 }, 6, "never over"},
		"no denial was kept":                   {func(a *Audit) { a.AuditedDenials, a.JudgedDenials = 0, 0 }, 6, "never over"},
		"some denials were left out":           {func(a *Audit) { a.DenialSampling = 2 }, 12, "exact, sampled"},
		"some, but hardly any":                 {func(a *Audit) { a.DenialSampling = 1.001 }, 6, "exact, sampled"},
		"no room for all decisions":            {func(a *Audit) { a.Complete = false }, 6, "no fault seen"},
		"answers were lost":                    {func(a *Audit) { a.KeysWithLostAnswers = 1 }, 6, "no fault seen"},
		"lost, and nothing denied":             {func(a *Audit) { a.KeysWithLostAnswers, a.AuditedDenials, a.JudgedDenials = 1, 0, 0 }, 0, "no fault seen"},
		"nothing was decided":                  {func(a *Audit) { *a = Audit{Complete: true, DenialSampling: 1} }, 0, "nothing to audit"},
		"a token too many":                     {func(a *Audit) { a.OverTokens = 1 }, 6, "OVER by 1"},
		"denials that were not due":            {func(a *Audit) { a.DenialsNotDue = 3 }, 6, "3 denials not due"},
		"both":                                 {func(a *Audit) { a.OverTokens, a.DenialsNotDue = 2, 3 }, 6, "OVER by 2, 3 denials not due"},
		"a fault though much is missing":       {func(a *Audit) { a.OverTokens, a.Complete, a.KeysWithLostAnswers, a.DenialSampling = 2, false, 5, 64 }, 6, "OVER by 2"},
	} {
		a := whole
		c.change(&a)
		if got := a.Judge(c.denied); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// judged is a run with that audit.
func judged(a Audit) Run {
	if a.Verdict == "" {
		a.Verdict = a.Judge(1)
	}
	return Run{Audit: &a}
}

// Each is worse than the one before, whichever ran first.
func TestVerdictOfARowIsTheWorst(t *testing.T) {
	t.Parallel()
	rising := []Run{
		judged(Audit{Verdict: VerdictExact}), judged(Audit{Verdict: VerdictSampled}), judged(Audit{Verdict: VerdictNeverOver}),
		judged(Audit{Verdict: VerdictNoFault}), judged(Audit{Verdict: VerdictNothing}),
		judged(Audit{DenialsNotDue: 1}), judged(Audit{DenialsNotDue: 5000}),
		judged(Audit{OverTokens: 1}), judged(Audit{OverTokens: 1, DenialsNotDue: 1}), judged(Audit{OverTokens: 2}),
	}
	for i, better := range rising {
		for _, worse := range rising[i:] {
			for _, runs := range [][]Run{{better, worse}, {worse, better}, {better, worse, better}} {
				if got := (Row{Runs: runs}).Verdict(); got != worse.Verdict() {
					t.Errorf("%q and %q: the row's verdict is %q", better.Verdict(), worse.Verdict(), got)
				}
			}
		}
	}
}

func TestRunWithoutAnAudit(t *testing.T) {
	t.Parallel()
	run := Run{}
	if run.Verdict() != "not audited" || run.Over() || (Row{Runs: []Run{run, run}}).Verdict() != "not audited" {
		t.Errorf("%q, over: %v", run.Verdict(), run.Over())
	}
	if over := judged(Audit{OverTokens: 1}); !over.Over() {
		t.Error("a token too many is not over")
	}
	if under := judged(Audit{DenialsNotDue: 1}); under.Over() {
		t.Error("a denial that was not due is over")
	}
}
