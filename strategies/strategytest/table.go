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
	// Rule of these strategies. Only its type counts.
	Rule rate.Rule

	// Rows about what is special about the rule. What holds for every rule is tested without them.
	Rows []Row

	// Whole says that a grant, of however few tokens, leaves none until it is paid for. The tests that take a
	// burst in parts are skipped then, or have a burst of one.
	Whole bool

	// Check returns whether the events of one bucket, in any order, include grants of more than the
	// limit allows, or denials of tokens that were there. It is audit.Check for another rule than that
	// of a token bucket.
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
	Rule:  bucket.Rule{},
	Rows:  slices.Concat(rows, changes),
	Check: func(limit rate.Limit, events []audit.Event) audit.Report { return audit.Check(limit, events) },
}

// known has the tables of the rules of this module.
var known = []Table{tokenBuckets}

// tableOf returns the table for the strategy's rule.
func tableOf(t *testing.T, strategy rate.Strategy, tables []Table) *Table {
	t.Helper()
	rule := strategy.Rule()
	for _, table := range slices.Concat(tables, known) {
		if reflect.TypeOf(table.Rule) == reflect.TypeOf(rule) {
			return &table
		}
	}
	switch rule := rule.(type) {
	case window.Rule:
		table := slidingWindows(rule)
		return &table
	case warmup.Rule:
		table := warmingUp(rule)
		return &table
	}
	t.Fatalf("%s has the rule %T, for which strategytest needs a Table", strategy.Name(), rule)
	return nil
}

func (s *suite) fillsAsATokenBucket() bool {
	return reflect.TypeOf(s.table.Rule) == reflect.TypeOf(tokenBuckets.Rule)
}

// onlyTokenBucket skips a test for other rules: what it wants follows from how a token bucket fills, or
// what another limit does to it. For other rules, the rows of their table say that.
func onlyTokenBucket(run func(*suite)) func(*suite) {
	return func(s *suite) {
		if !s.fillsAsATokenBucket() {
			s.Skipf("about token buckets: %s has the rule %T", s.strategy.Name(), s.table.Rule)
		}
		run(s)
	}
}

// slidingWindows is the table of strategies that never grant more than Limit.Burst in any Limit.Window.
func slidingWindows(rule window.Rule) Table {
	return Table{
		Rule: rule,
		Rows: windowRows,
		Check: func(limit rate.Limit, events []audit.Event) audit.Report {
			return audit.CheckBy(rule, limit, events)
		},
	}
}

func fivePer(period time.Duration) rate.Limit { return rate.Per(5, period) }

var windowRows = []Row{
	// A token bucket would grant one every 3 ms, and the weighted counter 199 within some 300 ms.
	{"AllOfAWindowComesBackWhenItIsOver", []Part{{rate.Per(100, 300*ms), []Step{{now, 100, 100, 100, 0}, {300 * ms, 1, 1, 1, 99}, {now, 99, 99, 99, some}}}}}, // and no more: Check
	{"OnePerPeriodIsTheWriteUpsRule", []Part{{rate.Every(20 * ms), []Step{{now, 1, 1, 1, 0}, {20 * ms, 1, 1, 1, 0}, {eventually, 1, 1, 1, 0}}}}},
	{"ANewWindowHasAllAtOnce", []Part{{fivePer(40 * ms), []Step{{now, 5, 5, 5, 0}, {40 * ms, 0, 5, 0, 5}, {now, 5, 5, 5, 0}}}}},

	{"ARaisedLimit", []Part{{slow(10), []Step{{now, 4, 4, 4, 6}}}, {slow(20), []Step{{now, 1, 1, 1, 15}}}}},
	{"ARaisedLimitTakesEffectAtOnce", []Part{{slow(10), []Step{{now, 10, 10, 10, 0}, {now, 1, 1, 0, 0}}}, {slow(1000), []Step{{now, 990, 1, 990, 0}, {now, 1, 1, 0, 0}}}}},
	{"ALoweredLimit", []Part{{slow(10), []Step{{now, 8, 8, 8, 2}}}, {slow(3), []Step{{now, 1, 1, 0, 0}}}, {slow(10), []Step{{now, 3, 1, 2, 0}}}}},
	{"AShorterWindow", []Part{{slow(5), []Step{{now, 5, 5, 5, 0}}}, {fivePer(50 * ms), []Step{{50 * ms, 5, 5, 5, 0}}}}},
	{"ALongerWindow", []Part{{fivePer(50 * ms), []Step{{now, 5, 5, 5, 0}}}, {slow(5), []Step{{50 * ms, 5, 5, 5, 0}, {now, 1, 1, 0, 0}}}}},
	{"TheLongerWindowIsNotForgottenMeanwhile", []Part{
		{slow(5), []Step{{now, 2, 2, 2, 3}}}, {fivePer(30 * ms), []Step{{eventually, 5, 5, 5, 0}, {eventually, 5, 5, 5, 0}}}, {slow(5), []Step{{eventually, 3, 3, 3, 0}, {now, 1, 1, 0, 0}}},
	}},
}

// warmingUp is the table of a strategy whose keys grant a burst when they are free, at a price that falls while they are in use.
func warmingUp(rule warmup.Rule) Table {
	// The cost of the first tokens of a cold key.
	cold := func(limit rate.Limit, n int64) time.Duration {
		return time.Duration(warmup.State{}.Take(rule, limit, 0, n).FreeNS)
	}
	one, five := rate.Every(10*ms), rate.Every(5*ms).WithBurst(5)
	return Table{
		Rule:  rule,
		Whole: true,
		Check: func(limit rate.Limit, events []audit.Event) audit.Report {
			return audit.CheckBy(rule, limit, events)
		},
		Rows: []Row{
			{"ABurstAtOnce", []Part{{slow(5), []Step{{now, 5, 5, 5, 0}, {now, 1, 1, 0, 0}, {now, 5, 1, 0, 0}}}}},
			{"APartOfABurst", []Part{{slow(5), []Step{{now, 2, 2, 2, 0}, {now, 1, 1, 0, 0}}}}},
			{"UnitsOfABurst", []Part{{slow(7), []Step{{now, 10, 2, 6, 0}, {now, 10, 2, 0, 0}, {now, 10, 1, 0, 0}}}}},
			{"UnitsThatAreAskedFor", []Part{{slow(7), []Step{{now, 5, 2, 4, 0}}}}},
			{"APeekForABurst", []Part{{slow(5), []Step{{now, 0, 5, 0, 5}, {now, 2, 2, 2, 0}, {now, 0, 1, 0, 0}}}}},

			{"ThePriceOfACold", []Part{{one, []Step{{now, 1, 1, 1, 0}, {cold(one, 1), 1, 1, 1, 0}}}}},
			{"ThePriceOfSeveral", []Part{{five, []Step{{now, 3, 3, 3, 0}, {cold(five, 3), 0, 5, 0, 5}}}}},
			{"OneAfterAnother", []Part{{rate.Every(2 * ms), slices.Repeat([]Step{{eventually, 1, 1, 1, 0}}, 8)}}},

			{"WhatWasGrantedIsPaidForUnderItsLimit", []Part{{slow(10), []Step{{now, 1, 1, 1, 0}}}, {rate.Every(ms), []Step{{now, 1, 1, 0, 0}}}}},
			{"ASlowerLimitPaysLater", []Part{{one, []Step{{now, 1, 1, 1, 0}}}, {slow(5), []Step{{cold(one, 1), 5, 5, 5, 0}, {now, 1, 1, 0, 0}}}}},
		},
	}
}
