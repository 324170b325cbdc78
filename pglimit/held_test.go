package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A role with a lock_timeout of its own ends even a patient call: its callers hear of it.
func TestAHeldKeyThatEvenAPatientCallGivesUpOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errLocked := fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)
		limiter := newLimiter(t, &fake{take: fail(errLocked)}, func(c *pglimit.Config) { c.Combine.Off = false })
		for range 3 {
			if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrLocked) {
				t.Error(err)
			}
		}
		if stats := limiter.Stats(); stats.LostTokens != 0 || stats.RoundTrips != 6 {
			t.Errorf("%+v", stats)
		}
	})
}

// A process has one call under way for a key at most, and charges nobody who has left:
// in any lane, while rows are held and callers leave.
func TestOneKeyNeverHasTwoCallsUnderWay(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			s := newTable(t) // which looks
			random := rand.New(rand.NewPCG(seed, 0))
			limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Combine.Lanes = false, 8 })
			var work sync.WaitGroup
			var heard atomic.Int64
			for range 3000 {
				key, patience := fmt.Sprint("k", random.IntN(20)), time.Duration(random.Int64N(int64(time.Second)))
				if random.IntN(100) == 0 {
					s.mu.Lock()
					held := s.held[key] != nil
					s.mu.Unlock()
					if !held {
						time.AfterFunc(time.Duration(random.Int64N(int64(300*time.Millisecond))), s.hold(key))
					}
				}
				work.Go(func() {
					ctx := t.Context()
					if patience < 200*time.Millisecond {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, patience)
						defer cancel()
					}
					d, err := limiter.Allow(ctx, key)
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
					heard.Add(d.Granted)
				})
				time.Sleep(time.Duration(random.Int64N(int64(400 * time.Microsecond))))
			}
			work.Wait()
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
			var back int64
			for _, refund := range s.refunds {
				back += refund.Tokens
			}
			if taken := s.granted.Load(); heard.Load()+back != taken || back == 0 || s.mostWait == 0 {
				t.Errorf("taken %d, heard %d, given back %d; %d waited", taken, heard.Load(), back, s.mostWait)
			}
		})
	}
}

// table is a strategy whose rows can be held locked by somebody else, and be bad. It grants
// whatever is asked. A call takes a millisecond, and its patience is that of Postgres.
type table struct {
	fake
	t *testing.T

	mu       sync.Mutex
	held     map[string]chan struct{}
	bad      map[string]error
	busy     map[string]bool // calls under way ask for these keys
	waiting  int             // patient calls for rows that are held
	mostWait int
	alone    map[string]int // calls that asked for this key and no other
	granted  atomic.Int64
}

func newTable(t *testing.T) *table {
	s := &table{t: t, held: map[string]chan struct{}{}, bad: map[string]error{}, busy: map[string]bool{}, alone: map[string]int{}}
	s.take = s.decide
	return s
}

// hold a row locked until release is called.
func (s *table) hold(key string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.held[key] = c
	return func() {
		s.mu.Lock()
		delete(s.held, key)
		s.mu.Unlock()
		close(c)
	}
}

func (s *table) begin(requests []rate.Request) (keys []string, impatient bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		impatient = impatient || r.Impatient
		if !slices.Contains(keys, r.Key) {
			keys = append(keys, r.Key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if s.busy[key] {
			s.t.Errorf("%s has two calls under way", key)
		}
		s.busy[key] = true
	}
	if len(keys) == 1 {
		s.alone[keys[0]]++
	}
	return keys, impatient || len(keys) > 1
}

func (s *table) end(keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		delete(s.busy, key)
	}
}

func (s *table) decide(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
	keys, impatient := s.begin(requests)
	defer s.end(keys)
	time.Sleep(time.Millisecond)
	for _, key := range keys {
		if err := s.lock(ctx, key, impatient); err != nil {
			return nil, err
		}
	}
	for _, r := range requests {
		s.granted.Add(r.Tokens)
	}
	return grantAll(ctx, requests)
}

func (s *table) lock(ctx context.Context, key string, impatient bool) error {
	s.mu.Lock()
	held, err := s.held[key], s.bad[key]
	if held != nil && !impatient {
		s.waiting++
		s.mostWait = max(s.mostWait, s.waiting)
	}
	s.mu.Unlock()
	if err != nil || held == nil {
		return err
	}
	if impatient {
		select {
		case <-held:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
			return fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)
		}
	}
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
