package text

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// advice is what package compare makes of a report, to be said in words.
type advice struct {
	*compare.Evidence
	compare.Choice

	report result.Report
	take   string // what is recommended: the choice or, where nothing decides, the default. Empty: nothing
}

// Advice says which strategy to take, why, and how sure that is: a paragraph each, the most
// important first. There is none if nothing was measured.
func Advice(r result.Report) []string {
	a := adviceOn(r)
	paragraphs := []string{a.ruledOut()}
	switch {
	case len(a.Base) == 0:
		return nil
	case a.byBound():
		return sentences(append(paragraphs, a.bound(), a.equals(a.Base[0])))
	case len(a.Candidates) == 0:
		return sentences(append(paragraphs, a.bound(), a.certainty()))
	}
	return sentences(append(paragraphs, a.choice(), a.many(), a.hot(), a.bound(), a.stages(), a.others(), a.certainty()))
}

func adviceOn(r result.Report) advice {
	a := advice{Evidence: compare.EvidenceOf(r), report: r}
	if len(a.Candidates) > 0 && !a.byBound() {
		a.Choice = a.Choose()
		a.take = a.Strategy
	}
	if a.take == "" && slices.Contains(a.Between, compare.Default) {
		a.take = compare.Default
	}
	return a
}

// byBound says that what counts is whether each kept to the write-up's number of tokens.
func (a advice) byBound() bool {
	return len(a.Base) == 1 && a.Base[0].Scenario.AtMost > 0 && len(a.Names) > 1
}

// Headline is the advice in one line: which strategy. It is empty if nothing was measured.
func Headline(r result.Report) string {
	a := adviceOn(r)
	switch {
	case len(r.Capacity) > 0:
		best := slices.MaxFunc(r.Capacity, func(x, y result.Capacity) int { return cmp.Compare(x.Rate, y.Rate) })
		if best.Rate == 0 {
			return "No strategy kept p99 under the bound"
		}
		return fmt.Sprintf("%s keeps p99 under %s up to the highest rate, %s/s", best.Strategy, Micros(best.P99Bound), Count(int64(best.Rate)))
	case len(a.Base) == 0:
		return ""
	case a.byBound():
		return a.bound()
	case len(a.Candidates) == 0:
		return "No strategy can be recommended: all had faults"
	case len(a.Names) == 1:
		return "Only " + a.take + " was run"
	case a.take == "":
		return "No clear winner between " + strings.Join(a.Between, ", ")
	case a.Strategy == "":
		return "No clear winner: take the default, " + a.take
	case len(a.Base) == 1:
		return "For this load take " + a.take
	}
	return "Take " + a.take
}

// sentences leaves out what is empty.
func sentences(paragraphs []string) (said []string) {
	for _, p := range paragraphs {
		if p != "" {
			said = append(said, strings.TrimSuffix(p, ".")+".")
		}
	}
	return said
}

// ruledOut names the strategies that had faults, and which; of many strategies the worst.
func (a advice) ruledOut() string {
	var said []string
	for _, name := range a.Out {
		words := faultWords(a.Faults(name), false)
		if len(a.Out) > 3 {
			words = words[:1]
		}
		said = append(said, name+" ("+strings.Join(words, ", ")+a.where(name)+")")
	}
	if len(said) == 0 {
		return ""
	}
	text := "Ruled out by faults: " + strings.Join(said, "; ")
	switch {
	case a.Excused && len(a.Candidates) > 0:
		text = "Every strategy had faults: " + strings.Join(said, "; ") + ". What follows leaves out only those that decided wrongly or failed far more often"
	case a.Excused:
		text = "None can be recommended, all had faults: " + strings.Join(said, "; ")
	}
	return text
}

// where the strategy had its faults, if there are several loads.
func (a advice) where(name string) string {
	var titles []string
	for _, l := range a.All() {
		if s, ran := l.Of(name); ran && s.Faults.Any() {
			titles = append(titles, l.Scenario.Title)
		}
	}
	switch {
	case len(a.All()) == 1:
		return ""
	case len(titles) > 1:
		return "; in " + Count(int64(len(titles))) + " loads"
	}
	return "; " + titles[0]
}

// choice says what to take in general, and what speaks for it.
func (a advice) choice() string {
	switch {
	case len(a.Names) == 1:
		return a.only()
	case a.Strategy == "":
		return a.undecided() + ". " + a.fallback()
	case len(a.Base) == 1:
		l := a.Base[0]
		s, _ := l.Of(a.take)
		text := fmt.Sprintf("For this load take %s: %s; %s", a.take, a.figure(l, s, a.reasons(l, s)), a.verdicts(a.take))
		if a.ByStages {
			text += "; " + aheadByStages
		}
		return text + ". Other loads were not measured"
	case len(a.Candidates) == 1:
		return fmt.Sprintf("That leaves %s; %s", a.take, a.verdicts(a.take))
	}
	record := a.Record(a.take)
	text := fmt.Sprintf("Take %s: %s", a.take, standing(record))
	switch {
	case record.Tied == record.Ran:
		text = fmt.Sprintf("Take %s: no other is clearly faster in any of %d loads", a.take, record.Ran)
		if a.ByStages {
			text += ", and " + aheadByStages
		}
	case record.Leads == 0 && len(record.Behind) > 0:
		text = fmt.Sprintf("Take %s: each of the others denied more than %s under some load only because another caller held the row", a.take, Share(compare.NotableContention))
	}
	return text + "; " + a.verdicts(a.take)
}

const aheadByStages = "it is ahead when requests are combined"

// standing over all loads: in how many the strategy is the fastest, and what became of the
// others.
func standing(r compare.Record) string {
	leads := Count(int64(r.Leads))
	if r.Leads == 0 {
		leads = "none"
	}
	text := fmt.Sprintf("fastest in %s of %s", leads, Plural(int64(r.Ran), "load"))
	if r.Tied > 0 {
		text += fmt.Sprintf(", too close to call in %d", r.Tied)
	}
	var behind []string
	for _, share := range r.Behind {
		behind = append(behind, Share(share))
	}
	switch len(behind) {
	case 0:
	case 1:
		text += ", behind by " + behind[0] + " in the other"
	default:
		text += ", behind by " + strings.Join(behind, ", ") + " in the others"
	}
	return text
}

// undecided says why no strategy is to be preferred.
func (a advice) undecided() string {
	names := strings.Join(a.Between, ", ")
	record := a.Record(a.Between[0])
	switch {
	case record.Ran == 0:
		return "No clear winner between " + names + ": no two of them ran under the same load"
	case record.Tied == record.Ran && len(a.Base) == 1:
		return "No clear winner between " + names + " for this load: too close to call"
	case record.Tied == record.Ran:
		return fmt.Sprintf("No clear winner between %s: too close to call in all of %d loads", names, record.Ran)
	}
	var said []string
	for _, name := range a.Between {
		said = append(said, name+" is "+standing(a.Record(name)))
	}
	return "No clear winner for all loads: " + strings.Join(said, "; ")
}

// fallback names the default, and why it is that, or why it cannot be taken here.
func (a advice) fallback() string {
	const it = "the default, " + compare.Default + " (any limit in one round trip, many keys in one call)"
	switch {
	case a.take != "":
		return "Take " + it + "; " + a.verdicts(a.take)
	case !slices.Contains(a.Names, compare.Default):
		return capital(it) + ", was not run"
	case slices.Contains(a.Out, compare.Default):
		return capital(it) + ", had faults"
	}
	return capital(it) + ", is " + standing(a.Record(compare.Default))
}

// capital letter first.
func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// only one strategy ran.
func (a advice) only() string {
	text := "Only " + a.take + " was run, so there is nothing to compare it with; " + a.verdicts(a.take)
	if len(a.Base) == 1 {
		s, _ := a.Base[0].Of(a.take)
		text += ". It did " + a.figure(a.Base[0], s, a.reasons(a.Base[0], s))
	}
	return text
}

// verdicts of the audits of all its runs, in a few words.
func (a advice) verdicts(name string) string {
	var seen []string
	for _, l := range a.All() {
		if s, ran := l.Of(name); ran && !slices.Contains(seen, s.Verdict()) {
			seen = append(seen, s.Verdict())
		}
	}
	only := func(verdicts ...string) bool {
		return !slices.ContainsFunc(seen, func(v string) bool { return !slices.Contains(verdicts, v) })
	}
	switch {
	case a.Faults(name).Wrong():
		return "not exact"
	case only(result.VerdictExact):
		return "exact"
	case only(result.VerdictExact, result.VerdictSampled):
		return "exact (denials sampled)"
	case only(result.VerdictExact, result.VerdictSampled, result.VerdictNeverOver):
		return "never over its limit"
	case slices.Contains(seen, result.VerdictOff):
		return "not audited"
	}
	return "no fault seen"
}
