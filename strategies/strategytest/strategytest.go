// Package strategytest is the contract of rate.Strategy as a test suite. The strategies of
// this module pass it. Run it on a strategy of your own:
//
//	func TestMyStrategy(t *testing.T) {
//		strategytest.Run(t, newMigratedDatabase, MyStrategy{})
//	}
//
// Only the database's time counts: the tests compare the times in decisions, and never sleep.
//
// What is decided for one bucket is a table of limits, times and decisions. That of token buckets is
// in rows.go: add a row for another limit. A strategy with another rate.Rule brings a [Table] of its own.
// Whatever else is asked, in random order, is answered as pglimittest.Memory does it: see walk.go.
package strategytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Run tests the strategy against its contract. newDB is called once. It returns a pool of at
// least 16 connections to a database in which the strategy is installed. If the strategy's
// Check refuses limits with a burst, the tests that need one are skipped.
//
// If the strategy's rule is not that of a token bucket, tables must have a table of it. Tests about how
// token buckets fill are skipped then. The other tests suppose only this of a rule: a full bucket grants its
// burst at once and, if the limit is one token in 1000 hours, nothing more during a test; in parts, unless the table is
// Whole.
func Run(t *testing.T, newDB func(testing.TB) *pgxpool.Pool, strategy rate.Strategy, tables ...Table) {
	t.Helper()
	RunOn(t, newDB, strategy, onPgx, tables...)
}

// RunOn is Run through another way to Postgres than a pool of pgx: through the Driver that open
// opens on the database of the pool, and that ends with the test. The suite looks at the database
// through the pool.
func RunOn(t *testing.T, newDB func(testing.TB) *pgxpool.Pool, strategy rate.Strategy, open func(*testing.T, *pgxpool.Pool) Driver, tables ...Table) {
	t.Helper()
	table := tableOf(t, strategy, tables)
	pool := newDB(t)
	driver := open(t, pool)
	beside, err := pgxpool.NewWithConfig(t.Context(), pool.Config()) // one for all tests: connecting takes longer than most of them
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(beside.Close)
	another := open(t, beside).Session()
	run(t, append(decisions(table), inPostgres()...), func() suite {
		return suite{table: table, pool: pool, open: open, driver: driver, session: driver.Session(), another: another, strategy: strategy}
	})
}

// RunInMemory is Run for a strategy that does not decide in Postgres: its session autocommits, and
// panics at a statement. The tests about transactions, locks, commits and query modes are left out.
//
// newStrategy is called for each test, and also returns the clock of the strategy, which must be
// safe for concurrent use. The tests never sleep: the clock must move on by itself, by some
// microseconds from one decision to the next, and by less than a millisecond.
func RunInMemory(t *testing.T, newStrategy func() (rate.Strategy, func() time.Time), tables ...Table) {
	t.Helper()
	one, _ := newStrategy()
	table := tableOf(t, one, tables)
	run(t, decisions(table), func() suite {
		s := suite{table: table, session: postgres.OnPool(nil)}
		s.another = s.session
		s.strategy, s.inMemory = newStrategy()
		return s
	})
}

type test struct {
	name string
	run  func(*suite)
}

func run(t *testing.T, tests []test, newSuite func() suite) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			defer func() { // else it would be hidden behind a pool that waits for its connection
				if what := recover(); what != nil {
					t.Errorf("the strategy panicked: %v\n%s", what, debug.Stack())
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 4*patience) // a call that never returns fails, and says where
			defer cancel()
			s := newSuite()
			s.T, s.ctx, s.deadlocks = t, ctx, new(atomic.Int64)
			s.limiter = fmt.Sprintf("%s-%08x", test.name, rand.Uint32())
			test.run(&s)
		})
	}
}

// decisions are the tests about what is decided, wherever that is.
func decisions(table *Table) []test {
	return slices.Concat(tests(always), tests(table.Rows), []test{
		{"DecidesAsInMemory", decidesAsInMemory},
		{"BadInputIsAnErrorAndChangesNothing", badInput},
		{"ADecisionSaysWhetherThereIsARow", hasRow},
		{"ACancelledCallTakesNothing", cancelled},
		{"ExactUnderConcurrentLoad", exactUnderLoad},
		{"NeverOverTheLooserLimit", neverOver},
		{"LeasesLoseNoToken", leasesLoseNothing},
		{"AnIDCanBeUsedAgain", onceExpires},
		{"GroupsReserveAllOrNothing", groupsReserve},
		{"NobodyIsGrantedInAPause", pauses},
		{"DenialsFarApartDoNotBlock", blocksWithin},
		{"EveryDenialCountsUnderLoad", blocksUnderLoad},
	})
}

// inPostgres are the tests about what Postgres does meanwhile: they use the pool.
func inPostgres() []test {
	return []test{
		{"ACallJoinsTheCallersTransaction", joinsTransaction},
		{"EveryQueryMode", everyQueryMode},
		{"ADenialWritesNothingAndDurableIsDurable", writesAsItShould},
		{"ACallCancelledInATransactionTakesNothing", cancelledInTransaction},
		{"KeysInAnyOrderAreExactAndDoNotDeadlock", keysInAnyOrder},
		{"AGroupWaitsAndHoldsNothing", groupsWait},
		{"TheSameIDAtTheSameTime", onceWaits},
		{"IDsAreChargedOnceUnderLoad", onceUnderLoad},
		{"BlockedWhileItWaits", blockedWhileItWaits},
	}
}

// suite is one test. Its limiter name is unique, even in a database that was used before.
type suite struct {
	*testing.T
	ctx       context.Context
	pool      *pgxpool.Pool
	open      func(*testing.T, *pgxpool.Pool) Driver
	driver    Driver
	session   rate.Session     // on the driver's pool
	another   rate.Session     // of another process: on another pool
	inMemory  func() time.Time // the clock of a strategy in memory, for which pool is nil
	strategy  rate.Strategy
	table     *Table // of the strategy's rule
	limiter   string
	deadlocks *atomic.Int64 // found so far
}

// Context ends after some minutes.
func (s *suite) Context() context.Context { return s.ctx }

func (s *suite) ask(key string, limit rate.Limit, tokens, unit int64) rate.Request {
	return rate.Request{Limiter: s.limiter, Key: key, Limit: limit, Tokens: tokens, Unit: unit}
}

func (s *suite) try(session rate.Session, requests ...rate.Request) ([]rate.Decision, error) {
	s.Helper()
	decisions, err := s.strategy.Take(s.Context(), session, requests)
	for tries := 0; errors.Is(err, rate.ErrNothingTaken) && tries < 10; tries++ {
		decisions, err = s.strategy.Take(s.Context(), session, requests) // on a busy machine that can happen
	}
	if err == nil && len(decisions) != len(requests) {
		s.Fatalf("Take gave %d decisions for %d requests", len(decisions), len(requests))
	}
	return decisions, err
}

func (s *suite) takeAll(session rate.Session, requests ...rate.Request) []rate.Decision {
	s.Helper()
	decisions, err := s.try(session, requests...)
	if err != nil {
		s.Fatalf("Take: %v", err)
	}
	return decisions
}

// take is takeAll for one request. With one caller at a time it is never contended.
func (s *suite) take(key string, limit rate.Limit, tokens, unit int64) rate.Decision {
	s.Helper()
	return s.takeAll(s.session, s.ask(key, limit, tokens, unit))[0]
}

func (s *suite) peek(key string, limit rate.Limit) rate.Decision {
	s.Helper()
	return s.take(key, limit, 0, 1)
}

// has checks how many tokens a peek finds.
func (s *suite) has(key string, limit rate.Limit, tokens int64) {
	s.Helper()
	if d := s.peek(key, limit); d.Remaining != tokens || d.Allowed != (tokens > 0) {
		s.Errorf("a peek finds %d tokens, and is allowed %v; want %d", d.Remaining, d.Allowed, tokens)
	}
}

const patience = time.Minute

// until polls until a decision satisfies done. It returns that decision and the one before it.
func (s *suite) until(what string, poll func() rate.Decision, done func(rate.Decision) bool) (before, at rate.Decision) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	for {
		at = poll()
		if done(at) {
			return before, at
		}
		before = at
		if ctx.Err() != nil {
			s.Fatalf("%s did not happen in %v; last: %+v", what, patience, at)
		}
	}
}
