package text

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// screen is how many lines the suite may have: more than 60 are not read, and the command says up to four
// on stderr about its throwaway server.
const screen = 56

// Suite is what the default run prints: what was run on what, a block per scenario, what
// the stages make of each, and the advice, a paragraph each. To fit a screen, it leaves out the
// least important advice, and then folds warnings.
func Suite(r result.Report, advice []string, o Options) string {
	base, staged := compare.Split(r.Groups())
	if len(base) == 0 {
		return text(suiteNotes(r, nil), recommendation(advice, o))
	}
	blocks := make([]block, 0, len(base))
	rows := [][]string{blockHead}
	for _, g := range base {
		b := newBlock(g)
		blocks = append(blocks, b)
		rows = append(rows, b.rows...)
	}
	wide := widths(rows...)

	// The columns are the same in all blocks, so if there are too many lines the first one's
	// head serves the others. If that is not enough, empty lines are left out.
	build := func(repeat, folded bool) (paragraphs [][]string) {
		for i, b := range blocks {
			paragraphs = append(paragraphs, b.lines(wide, i > 0 && !repeat, folded, o))
		}
		return paragraphs
	}
	rest := [][]string{gains(base, staged, false, o), suiteNotes(r, blocks)}
	said := recommendation(advice, o)
	top := head(r, base)
	full := slices.Concat([][]string{top}, build(true, false), rest, [][]string{said})
	once := slices.Concat([][]string{top}, build(false, false), rest, [][]string{said})
	blocksTogether := slices.Concat([][]string{top, slices.Concat(build(false, false)...)}, rest, [][]string{said})
	allTogether := [][]string{top, slices.Concat(append(build(false, false), rest...)...), said}
	for _, paragraphs := range [][][]string{full, once, blocksTogether, allTogether} {
		if out := text(paragraphs...); strings.Count(out, "\n") <= screen {
			return out
		}
	}
	// Then the least important advice is left out: the last says how sure all is, so what is before it. The
	// first two are what was ruled out and what to take. If that is not enough, the warnings are cut.
	folded := [][]string{top, slices.Concat(append(build(false, true), gains(base, staged, true, o), foldedNotes(r))...), said}
	for _, paragraphs := range [][][]string{allTogether, folded} {
		for shorter := slices.Clone(advice); ; shorter = slices.Delete(shorter, len(shorter)-2, len(shorter)-1) {
			paragraphs[2] = recommendation(shorter, o)
			if out := text(paragraphs...); strings.Count(out, "\n") <= screen {
				return out
			}
			if len(shorter) <= 3 {
				break
			}
		}
	}
	allTogether[2] = said
	return text(allTogether...) // more strategies than fit
}

// recommendation has a paragraph for each of the advice.
func recommendation(advice []string, o Options) (lines []string) {
	if len(advice) == 0 {
		return nil
	}
	lines = []string{o.title("Recommendation")}
	for _, paragraph := range advice {
		lines = append(lines, wrap("- "+paragraph, Width, 2)...)
	}
	return lines
}

// suiteNotes explain the words and signs that the blocks use.
func suiteNotes(r result.Report, blocks []block) []string {
	var notes []string
	note := func(when bool, text string) {
		if when {
			notes = append(notes, text)
		}
	}
	printed, contended := "", false
	for _, b := range blocks {
		for i, s := range b.standings {
			printed += " " + strings.Join(b.rows[i], " ") + " " + s.Verdict()
			contended = contended || s.OftenContended()
		}
	}
	note(r.Interrupted, "Interrupted: the last run is shorter than the others, or missing.")
	note(strings.Contains(printed, result.VerdictExact), "exact: no key exceeded its limit; every denial (contended ones aside) was due.")
	note(strings.Contains(printed, result.VerdictSampled), "sampled: only some denials were checked (--details).")
	note(strings.Contains(printed, result.VerdictNeverOver), "never over: no denial could be checked.")
	note(strings.Contains(printed, result.VerdictNoFault), "no fault seen: grants are missing from the audit.")
	note(strings.Contains(printed, " ~ "), "~: too close to the fastest (*) to call.")
	note(contended, "cont(ended): denied because another caller held the row.")
	note(strings.Contains(printed, " "+Unknown), "?: not known.")
	note(strings.Contains(printed, "pub. "), "pub.: published_, the write-up's own statement.")
	note(true, adapted(r))
	return wrap(strings.Join(notes, " "), Width, 0)
}

// foldedNotes stand for the others where there is no room.
func foldedNotes(r result.Report) []string {
	note := "Cut to fit a screen: --details has every figure and fault."
	if r.Interrupted {
		note = "Interrupted. " + note
	}
	return wrap(note+" "+adapted(r), Width, 0)
}

// adapted names the strategies that could not keep the limit of the scenario.
func adapted(r result.Report) string {
	var names []string
	for _, run := range r.Runs {
		if run.Adapted && !slices.Contains(names, run.Strategy) {
			names = append(names, run.Strategy)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("Burst 1 only: %s.", strings.Join(names, ", "))
}

// faulty lists the staged runs with a fault, which have no verdict of their own.
func faulty(staged []result.Group) (lines []string) {
	for _, g := range staged {
		for _, s := range compare.Rank(g) {
			if s.Faults.Any() {
				lines = append(lines, fmt.Sprintf("! %s, %s: %s", s.Strategy, g.Scenario.Title, strings.Join(faultWords(s.Faults, false), ", ")))
			}
		}
	}
	return lines
}
