package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// WriteTable writes the report for a person: what was run, one column per strategy, and
// notes that help to read the numbers.
func (r Report) WriteTable(w io.Writer) error {
	var out strings.Builder
	for _, line := range r.head() {
		out.WriteString(line + "\n")
	}
	if len(r.Runs) > 0 {
		out.WriteString("\n" + r.table() + "\n")
	}
	if notes := r.notes(); len(notes) > 0 {
		out.WriteString("\n" + strings.Join(notes, "\n") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (r Report) head() []string {
	c := r.Config
	loop := fmt.Sprintf("closed loop of %s callers", count(int64(c.Callers)))
	if c.RPS > 0 {
		loop = fmt.Sprintf("open loop, %s arrivals/s (%s), up to %s at once", number(c.RPS), c.Arrivals, count(int64(c.Callers)))
	}
	load := fmt.Sprintf("%s; %s of %s", loop, plural(c.Instances, "instance"), plural(c.Conns, "connection"))
	keys := plural(c.Keys, "key")
	if c.Keys > 1 {
		keys += " (" + c.Distribution + ")"
	}
	keys += fmt.Sprintf(", limit %v each, cost %d, %v", c.Limit, c.Cost, c.Durability)
	if c.Timeout > 0 {
		keys += fmt.Sprintf(", timeout %v", c.Timeout)
	}
	return []string{
		"server " + r.Server.Version + ": " + r.Server.Source,
		load,
		keys,
		c.stagesText(),
		fmt.Sprintf("%v each after %v of warm-up, seed %d", c.Duration, c.Warmup, c.Seed),
	}
}

type row struct {
	name string
	cell func(Result) string
}

func (r Report) rows() [][]row {
	latency := func(name string, of func(Latency) time.Duration) row {
		return row{name, func(run Result) string {
			if run.Latency == (Latency{}) {
				return "none"
			}
			return duration(of(run.Latency))
		}}
	}
	server := func(name string, of func(Result, ServerSide) string) row {
		return row{name, func(run Result) string {
			if run.Server == nil {
				return "unknown"
			}
			return of(run, *run.Server)
		}}
	}
	blocks := [][]row{
		{{"decisions/s", func(run Result) string { return number(run.DecisionsPerSecond) }}},
		{
			latency("latency p50", func(l Latency) time.Duration { return l.P50 }),
			latency("p90", func(l Latency) time.Duration { return l.P90 }),
			latency("p99", func(l Latency) time.Duration { return l.P99 }),
			latency("p99.9", func(l Latency) time.Duration { return l.P999 }),
			latency("max", func(l Latency) time.Duration { return l.Max }),
		},
		append([]row{
			{"allowed", func(run Result) string { return count(run.Allowed) }},
			{"denied", func(run Result) string { return count(run.Denied) }},
			{"of them contended", func(run Result) string { return count(run.Contended) }},
		}, r.errorRows()...),
		r.stageRows(),
		{
			server("deadlocks", func(_ Result, s ServerSide) string { return count(s.Deadlocks) }),
			server("WAL bytes/decision", func(run Result, s ServerSide) string { return number(run.perDecision(s.WALBytes)) }),
			server("transaction ids/decision", func(run Result, s ServerSide) string { return fmt.Sprintf("%.3f", run.perDecision(s.TransactionIDs)) }),
			server("dead tuples", func(_ Result, s ServerSide) string { return count(s.DeadTuples) }),
			server("HOT updates", func(_ Result, s ServerSide) string { return s.hot() }),
		},
	}
	ran := []row{{"storage", Result.storage}}
	if r.adapted() {
		ran = append([]row{{"limit", func(run Result) string { return run.limit(r.Config) }}}, ran...)
	}
	blocks = append([][]row{ran}, blocks...)
	if r.Config.AuditDecisions > 0 {
		blocks = append(blocks, []row{
			{"audited grants", func(run Result) string { return count(run.Audit.Grants) }},
			{"audited denials", func(run Result) string { return run.Audit.denials() }},
			{"verdict", Result.Verdict},
		})
	}
	return blocks
}

// errorRows has a row for each kind of error that any strategy had, or one that says
// that there was none.
func (r Report) errorRows() []row {
	kinds := map[string]bool{}
	for _, run := range r.Runs {
		for kind := range run.Errors {
			kinds[kind] = true
		}
	}
	if len(kinds) == 0 {
		return []row{{"errors", func(Result) string { return "0" }}}
	}
	var rows []row
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		rows = append(rows, row{"error " + kind, func(run Result) string { return count(run.Errors[kind]) }})
	}
	return rows
}

func (r Report) table() string {
	t := table.NewWriter()
	style := table.StyleRounded
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)

	head := table.Row{""}
	columns := []table.ColumnConfig{{Number: 1, Align: text.AlignLeft}}
	for i, run := range r.Runs {
		head = append(head, strings.Replace(run.Strategy, "published_", "published\n", 1))
		columns = append(columns, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.AppendHeader(head)
	t.SetColumnConfigs(columns)
	for i, block := range r.rows() {
		if i > 0 {
			t.AppendSeparator()
		}
		for _, line := range block {
			cells := table.Row{line.name}
			for _, run := range r.Runs {
				cells = append(cells, line.cell(run))
			}
			t.AppendRow(cells)
		}
	}
	return t.Render()
}

// denials says how many were audited and, if that is a sample, 1 of how many.
func (a Audit) denials() string {
	if a.DenialSampling > 1 {
		return fmt.Sprintf("%s (1 of %s)", count(a.Denials), number(a.DenialSampling))
	}
	return count(a.Denials)
}

func (r Report) adapted() bool {
	return slices.ContainsFunc(r.Runs, func(run Result) bool { return run.Adapted })
}

func (s ServerSide) hot() string {
	ratio, ok := s.HOTRatio()
	if !ok {
		return "no updates"
	}
	return fmt.Sprintf("%.1f %%", 100*ratio)
}

// limit says which limit the strategy ran under, and its cost if that is not the others'.
func (r Result) limit(c Config) string {
	if r.Cost == c.Cost {
		return r.Limit
	}
	return fmt.Sprintf("%s, cost %d", r.Limit, r.Cost)
}
