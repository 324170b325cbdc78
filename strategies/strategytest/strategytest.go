// Package strategytest is the contract of rate.Strategy as a test suite. The strategies of
// this module pass it. Run it on a strategy of your own:
//
//	func TestMyStrategy(t *testing.T) {
//		strategytest.Run(t, newMigratedDatabase, MyStrategy{})
//	}
//
// Only the database's time counts: the tests compare the times in decisions, and never sleep.
package strategytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Run tests the strategy against its contract. newDB is called once. It returns a pool of at
// least 16 connections to a database in which the strategy is installed. If the strategy's
// Check refuses limits with a burst, the tests that need one are skipped.
func Run(t *testing.T, newDB func(testing.TB) *pgxpool.Pool, strategy rate.Strategy) {
	t.Helper()
	pool := newDB(t)
	tests := []struct {
		name string
		run  func(*suite)
	}{
		{"OnePerPeriodIsTheWriteUpsRule", onePerPeriod},
		{"BurstIsGrantedAtOnceAndNoMore", burst},
		{"CostIsAllOrNothing", cost},
		{"UnitGrantsWholeMultiples", unit},
		{"PeekTakesNothing", peek},
		{"ResetFillsTheBucket", reset},
		{"SeveralKeysInOneCallInAnyOrder", severalKeys},
		{"TheSameKeyTwiceInOneCall", sameKeyTwice},
		{"NoRequestsNoDecisions", noRequests},
		{"FirstRequestsOfANewKey", firstRequests},
		{"RetryAfterIsWhenTheNextIsGranted", retryAfter},
		{"ResetAfterIsWhenTheBucketIsFull", resetAfter},
		{"ABillionPerSecond", billionPerSecond},
		{"OnePerYear", onePerYear},
		{"UnevenRatesLoseNothing", unevenRates},
		{"KeysInAnyScript", anyScript},
		{"KeysAndLimitersAreApart", apart},
		{"BadRequestsAreErrorsAndTakeNothing", badRequests},
		{"AChangedLimitKeepsWhatWasUsed", changedLimit},
		{"LimitsSideBySideGrantNoMoreThanTheLooser", sideBySide},
		{"ARaisedLimitTakesEffectAtOnce", raisedLimit},
		{"ALoweredLimitLocksNobodyOut", loweredLimit},
		{"RetryAfterIsTrueAfterAChangeOfTheLimit", retryAfterAChange},
		{"ATakeJoinsTheCallersTransaction", callersTransaction},
		{"TheCallersTransactionIsNotAltered", callersSettings},
		{"ACancelledCallTakesNothing", cancelled},
		{"EveryDurability", durability},
		{"EveryQueryMode", queryModes},
		{"SweepChangesNoDecision", sweep},
		{"WhatIsGivenBackCanBeHadAgain", givenBack},
		{"NothingIsGivenBackAfterAReset", givenBackAfterReset},
		{"NothingIsGivenBackToAnotherLimit", givenBackToAnotherLimit},
		{"WhatFlowedBackIsNotGivenBackToo", givenBackLate},
		{"BadRefundsAreErrorsAndGiveNothing", badRefunds},
		{"ARefundJoinsTheCallersTransaction", givenBackInTransaction},
		{"ADenialWritesNothing", denialWritesNothing},
		{"OneDurableRequestMakesTheCallDurable", durableCalls},
		{"KeysInAnyOrderDoNotDeadlock", noDeadlock},
		{"ExactUnderConcurrentLoad", exactUnderLoad},
		{"ALeaseIsSetAsideAndSettledOnce", leaseSetsAside},
		{"ALeaseIsOneInShareOfWhatIsLeft", leaseShares},
		{"ALeaseOfNothingOnlySettles", leaseOfNothing},
		{"SeveralLeasesOfOneBucket", leasesOfOneBucket},
		{"ALeaseThatExpiresIsSpent", leaseExpires},
		{"ALeaseIsForgottenByAReset", leaseAfterReset},
		{"BadLeasesAreErrorsAndChangeNothing", badLeases},
		{"ALeaseJoinsTheCallersTransaction", leaseInTransaction},
		{"LeasesInEveryQueryMode", leaseQueryModes},
		{"LeasesAreNeverOver", leasesUnderLoad},
		{"LeasesLoseNoToken", leasesLoseNothing},
		{"ResetAllFillsEveryBucketOfOneLimiter", resetAll},
		{"ResetAllJoinsTheCallersTransaction", resetAllInTransaction},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			defer func() { // else it would be hidden behind a pool that waits for its connection
				if what := recover(); what != nil {
					t.Errorf("the strategy panicked: %v\n%s", what, debug.Stack())
				}
			}()
			test.run(&suite{T: t, pool: pool, session: rate.OnPool(pool), strategy: strategy, limiter: fmt.Sprintf("%s-%08x", test.name, rand.Uint32())})
		})
	}
}

// suite is one test. Its limiter name is unique, even in a database that was used before.
type suite struct {
	*testing.T
	pool     *pgxpool.Pool
	session  rate.Session // on the pool
	strategy rate.Strategy
	limiter  string
}

// capable returns the strategy as a capability C, which not every strategy has. It skips the
// test if this one does not have it.
func capable[C rate.Strategy](s *suite) C {
	s.Helper()
	able, ok := s.strategy.(C)
	if !ok {
		s.Skipf("%s is no %v", s.strategy.Name(), reflect.TypeFor[C]())
	}
	return able
}

// needs returns the limit, and skips the test if the strategy does not keep it.
func (s *suite) needs(limit rate.Limit) rate.Limit {
	s.Helper()
	if err := s.strategy.Check(limit); err != nil {
		s.Skipf("not for %s: %v", s.strategy.Name(), err)
	}
	return limit
}

func (s *suite) ask(key string, limit rate.Limit, tokens, unit int64) rate.Request {
	return rate.Request{Limiter: s.limiter, Key: key, Limit: limit, Tokens: tokens, Unit: unit}
}

func (s *suite) takeAll(session rate.Session, requests ...rate.Request) []rate.Decision {
	s.Helper()
	decisions, err := s.strategy.Take(s.Context(), session, requests)
	for tries := 0; len(requests) > 1 && errors.Is(err, rate.ErrNothingTaken) && tries < 10; tries++ {
		decisions, err = s.strategy.Take(s.Context(), session, requests) // on a busy machine that can happen
	}
	if err != nil {
		s.Fatalf("Take: %v", err)
	}
	if len(decisions) != len(requests) {
		s.Fatalf("Take gave %d decisions for %d requests", len(decisions), len(requests))
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

// wants checks the fields that must be right in every decision of a take.
func (s *suite) wants(d rate.Decision, granted, remaining int64) {
	s.Helper()
	if d.Granted != granted || d.Allowed != (granted > 0) || d.Remaining != remaining || d.Contended {
		s.Errorf("granted %d, %d remain, allowed %v, contended %v; want %d granted, %d remaining",
			d.Granted, d.Remaining, d.Allowed, d.Contended, granted, remaining)
	}
	if d.At.IsZero() || d.At.Location() != time.UTC {
		s.Errorf("At is %v: want the database's time in UTC", d.At)
	}
}

const patience = 30 * time.Second

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
