// Package report writes what a bench has measured as one HTML file, which needs no script
// and nothing from elsewhere.
//
//	report.go     the page and its sections
//	answer.go     the picture at the top: which strategy, and by how much
//	facts.go      what was run on what
//	load.go       a load in words
//	summary.go    the table of a scenario; criterion.go the write-up's own measure;
//	              statements.go what the server says
//	pictures.go   which pictures a scenario has; dashboard.go the write-up's twelve panels;
//	              styles.go how each strategy is drawn
//	timeline.go   a picture over time; thin.go makes long runs short
//	curve.go      percentiles; limit.go tokens against the limit; total.go bars
//	capacity.go   what "pglimit bench capacity" has found
package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

var (
	//go:embed page.html
	pageText string
	//go:embed page.css
	pageCSS string

	pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"parts": parts, "clauses": clauses}).Parse(pageText))
)

// Write writes the report: first the headline, then the recommendation, which is one paragraph per
// string. Both may be empty. It is in UTF-8, and under 1 MB for a run of ten minutes with seven
// strategies.
func Write(w io.Writer, r result.Report, headline string, advice []string) error {
	p := page{
		Title: title(r), Headline: headline, Loop: oneLoop(r), ChartCSS: chart.CSS(), PageCSS: template.CSS(pageCSS), //nolint:gosec // the text is embedded
		Advice: advice, Interrupted: r.Interrupted, Facts: facts(r), Loads: loads(r.Scenarios),
	}
	if err := p.addSections(r.Groups(), p.Loop); err != nil {
		return err
	}
	var err error
	if p.Answer, err = answer(r); err != nil {
		return err
	}
	if p.Capacity, err = newCapacity(r.Capacity); err != nil {
		return err
	}
	var out bytes.Buffer // a page is whole, or is not written
	if err := pageTemplate.Execute(&out, p); err != nil {
		return err
	}
	_, err = w.Write(out.Bytes())
	return err
}

// page is what the template shows.
type page struct {
	Title, Headline   string
	Loop              string // of all scenarios: open or closed. Empty: they differ
	Answer            template.HTML
	ChartCSS, PageCSS template.CSS
	Advice            []string
	Interrupted       bool
	Facts             []fact
	Loads             []load
	Sections          []*section
	Capacity          *capacity
}

// section is a scenario.
type section struct {
	ID, Title, About, Load string
	Nested                 bool // the same load with stages, below the one without

	Summary    summary
	Failures   []failure
	Criterion  *criterion
	Statements []statement
	Quiet      string // what did not happen, in place of pictures of nothing
	Thinned    string
	Pictures   []pictures
	Staged     []*section
}

// pictures under one heading.
type pictures struct {
	Title, About string
	Figures      []template.HTML
}

func (p *page) addSections(groups []result.Group, loop string) error {
	byName := map[string]*section{}
	for i, g := range groups {
		s, err := newSection("s"+strconv.Itoa(i+1), g, loop)
		if err != nil {
			return err
		}
		byName[g.Scenario.Name] = s
		if plain := byName[g.Scenario.StagesOf]; g.Scenario.StagesOf != "" && plain != nil && !plain.Nested {
			s.Nested = true
			plain.Staged = append(plain.Staged, s)
			continue
		}
		p.Sections = append(p.Sections, s)
	}
	return nil
}

func newSection(id string, g result.Group, loop string) (*section, error) {
	a := newAlbum(id, g)
	s := &section{
		ID: id, Title: heading(g.Scenario), About: g.Scenario.About, Load: words(g.Scenario.Parameters, loop == ""),
		Summary: newSummary(g), Failures: failures(g), Criterion: newCriterion(g), Statements: statements(g),
		Quiet: a.quiet(), Thinned: a.thinned(),
	}
	for _, chapter := range a.chapters() {
		figures, err := a.draw(chapter.pictures)
		if err != nil {
			return nil, err
		}
		if len(figures) > 0 {
			s.Pictures = append(s.Pictures, pictures{Title: chapter.title, About: chapter.about, Figures: figures})
		}
	}
	return s, nil
}

// parts of a name, between which a line may break.
func parts(name string) []string { return strings.SplitAfter(name, "_") }

// clauses of a paragraph, which are read more easily in a line each: they end with a semicolon or a full
// stop that is in no parentheses.
func clauses(paragraph string) (lines []string) {
	depth, begin := 0, 0
	for i, c := range paragraph {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && (strings.HasPrefix(paragraph[i:], "; ") || strings.HasPrefix(paragraph[i:], ". ")):
			lines = append(lines, paragraph[begin:i])
			begin = i + 2
		}
	}
	return append(lines, paragraph[begin:])
}

// oneLoop is the loop of all scenarios. Empty: they differ, it is not known, or capacity was measured,
// which has both.
func oneLoop(r result.Report) (loop string) {
	if len(r.Capacity) > 0 {
		return ""
	}
	for i, s := range r.Scenarios {
		if i > 0 && s.Parameters.Loop != loop {
			return ""
		}
		loop = s.Parameters.Loop
	}
	return loop
}

// heading begins with a capital letter.
func heading(s result.Scenario) string {
	text := s.Title
	if text == "" {
		text = s.Name
	}
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

func title(r result.Report) string {
	switch {
	case len(r.Capacity) > 0:
		return "pglimit bench: capacity"
	case len(r.Scenarios) == 1 && r.Scenarios[0].Title != "":
		return "pglimit bench: " + r.Scenarios[0].Title
	}
	return fmt.Sprintf("pglimit bench: %d scenarios", len(r.Scenarios))
}
