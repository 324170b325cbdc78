package strategytest

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// Table says what must hold for the strategies of one rule.
type Table struct {
	// Rule of these strategies: the table is for all of its type.
	Rule rate.Rule

	// Rows about what is special about the rule. What holds for every rule is tested without them.
	Rows []Row

	// Whole says that a grant, of however few tokens, leaves none until it is paid for. The tests that take a
	// burst in parts are skipped then, or have a burst of one.
	Whole bool

	// Check returns whether the events of one bucket, in any order, include grants of more than the
	// limit allows, or denials of tokens that were there. Nil: audit.Check by the Rule.
	Check func(limit rate.Limit, events []audit.Event) audit.Report
}

// Row of a [Table]: what is asked of one bucket, and what must be decided. The limit that is asked
// with changes from part to part. Beside what a row says, the decisions of the first part must agree
// with one another by the strategy's rate.Rule, and with the table's Check.
type Row struct {
	Name  string
	Parts []Part
}

// Part of a row: steps under one limit.
type Part struct {
	Limit rate.Limit
	Steps []Step
}

// Step asks for Tokens in units, at a time, and says how many of them must be granted and how
// many must be left then. Zero tokens are a peek.
type Step struct {
	At            time.Duration // Now, Eventually, or since the row's first decision
	Tokens, Unit  int64
	Granted, Left int64 // or Some
}

// Times of a step: it is asked once, or again and again until it is allowed. That must be when so
// much time has passed since the row's first decision (30 * time.Millisecond), or when the rule
// says.
const (
	Now        time.Duration = 0
	Eventually time.Duration = -1
)

// Some: one at least of the tokens granted, or any number of the tokens that are left.
const Some = -1

// tokenBuckets is the table of the strategies of package strategies.
var tokenBuckets = Table{
	Rule: bucket.Rule{},
	Rows: slices.Concat(rows, changes),
}

// tableOf returns the table for the strategy's rule.
func tableOf(t *testing.T, strategy rate.Strategy, tables []Table) *Table {
	t.Helper()
	rule := strategy.Rule()
	for _, table := range tables {
		if reflect.TypeOf(table.Rule) == reflect.TypeOf(rule) {
			return &table
		}
	}
	switch rule := rule.(type) {
	case bucket.Rule:
		return &tokenBuckets
	case window.Rule:
		return &Table{Rule: rule, Rows: windowRows}
	case warmup.Rule:
		return &Table{Rule: rule, Rows: warmUpRows(rule), Whole: true}
	}
	t.Fatalf("%s has the rule %T, for which strategytest needs a Table", strategy.Name(), rule)
	return nil
}

func (t *Table) check(limit rate.Limit, events []audit.Event) audit.Report {
	if t.Check != nil {
		return t.Check(limit, events)
	}
	return audit.Check(t.Rule, limit, events)
}

func (s *suite) fillsAsATokenBucket() bool {
	return reflect.TypeOf(s.table.Rule) == reflect.TypeOf(tokenBuckets.Rule)
}
