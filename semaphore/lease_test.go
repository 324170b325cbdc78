package semaphore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// The time of a permit counts from before the call that acquired it, whenever the answer comes.
func TestAPermitCountsFromBeforeTheCall(t *testing.T) {
	t.Parallel()
	slow := func() (bool, time.Duration, error) { time.Sleep(12 * time.Second); return true, 0, nil }
	for _, acquire := range []func(*testing.T, *Semaphore) *Permit{acquired, acquiredIf} {
		inBubble(t, &server{acquire: slow, renew: broken, release: no}, Config{}, func(t *testing.T, s *Semaphore) {
			began := time.Now()
			lostAfter(t, acquire(t, s), began, 29700*time.Millisecond)
		})
	}
}

// So does that of a renewal, which is sent after a third of the TTL.
func TestARenewalCountsFromBeforeTheCall(t *testing.T) {
	t.Parallel()
	on := &server{acquire: granted, release: no}
	on.renew = func() (bool, error) {
		if on.count("renew") == 1 {
			return after(12 * time.Second)()
		}
		return broken()
	}
	inBubble(t, on, Config{}, func(t *testing.T, s *Semaphore) {
		began := time.Now()
		lostAfter(t, acquired(t, s), began, 39700*time.Millisecond)
		if renewals := on.count("renew"); renewals < 5 {
			t.Errorf("%d renewals were tried", renewals)
		}
		if late := get(on, &on.ends).Sub(began) - 39700*time.Millisecond; late > 0 { // it would keep a place that nobody has
			t.Errorf("a renewal may go on for %v after the permit is lost", late)
		}
	})
}

func TestAPermitIsRenewedUntilItIsReleased(t *testing.T) {
	t.Parallel()
	on := &server{acquire: granted, renew: yes, release: yes}
	inBubble(t, on, Config{Timeout: 6 * time.Second}, func(t *testing.T, s *Semaphore) {
		if p, err := s.AcquireN(t.Context(), "k", 2); err == nil {
			t.Fatal("two of one place:", p.Release(t.Context()))
		}
		p := acquired(t, s)
		if lasts := get(on, &on.lasts); lasts != 30e6 {
			t.Errorf("acquired for %d µs, want a TTL", lasts)
		}
		time.Sleep(5*time.Minute + time.Second)
		if n, lasts, err := on.count("renew"), get(on, &on.lasts), p.Err(); n != 30 || lasts != 30e6 || err != nil {
			t.Errorf("%d renewals, the last for %d µs, want a TTL: %v", n, lasts, err)
		}
		if err := p.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if on.count("renew") != 30 {
			t.Error("renewed after the release")
		}
		q := acquired(t, s)
		set(on, &on.renew, func() (bool, error) { time.Sleep(5 * time.Second); return false, errBroken })
		time.Sleep(12 * time.Second) // in the middle of a renewal
		if err := q.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if on.count("renew") != 31 {
			t.Error("tried again after the release")
		}
	})
}

func TestARenewalSaysThatThePermitIsLost(t *testing.T) {
	t.Parallel()
	inBubble(t, &server{acquire: granted, renew: no, release: no}, Config{}, func(t *testing.T, s *Semaphore) {
		began := time.Now()
		lostAfter(t, acquired(t, s), began, 10*time.Second)
	})
}

// A holder whose timers have not run yet knows by the clock that its permit is lost.
func TestErrLooksAtTheClock(t *testing.T) {
	t.Parallel()
	inBubble(t, &server{acquire: granted, renew: yes, release: yes}, Config{}, func(t *testing.T, s *Semaphore) {
		p, q := acquired(t, s), acquired(t, s)
		for _, frozen := range []*Permit{p, q} {
			frozen.mu.Lock()
			frozen.expiry.Stop()
			frozen.renewal.Stop()
			frozen.mu.Unlock()
		}
		time.Sleep(time.Minute)
		if err := p.Err(); !errors.Is(err, ErrLost) || !errors.Is(context.Cause(p.Context()), ErrLost) {
			t.Errorf("got %v", err)
		}
		if err := q.Release(t.Context()); !errors.Is(err, ErrLost) { // though nobody has its place yet
			t.Errorf("got %v", err)
		}
	})
}

// A release that Postgres has answered is not sent again; one that it has not is.
func TestAReleaseIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	on := &server{acquire: granted, renew: yes}
	inBubble(t, on, Config{}, func(t *testing.T, s *Semaphore) {
		p := acquired(t, s)
		set(on, &on.release, broken)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Release(ended); !errors.Is(err, errBroken) {
			t.Errorf("got %v", err)
		}
		set(on, &on.release, yes)
		for range 2 {
			if err := p.Release(ended); err != nil {
				t.Error(err)
			}
		}
		if on.count("release") != 2 {
			t.Errorf("calls: %v", get(on, &on.calls))
		}
		q := acquired(t, s)
		set(on, &on.release, no) // by the database's clock it has expired
		for range 2 {
			if err := q.Release(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("got %v", err)
			}
		}
		if got := s.Stats(); got != (Stats{Acquired: 2, Lost: 1}) {
			t.Errorf("%+v", got)
		}
	})
}

// What may have been acquired is released: after an error, when the caller has left, and if the commit is not answered.
// What Postgres has refused is not.
func TestADoubtfulPermitIsReleased(t *testing.T) {
	t.Parallel()
	on := &server{release: yes}
	inBubble(t, on, Config{}, func(t *testing.T, s *Semaphore) {
		set(on, &on.acquire, func() (bool, time.Duration, error) { return false, 0, &pgconn.PgError{Code: "22023"} })
		if _, err := s.Acquire(t.Context(), "k"); !errors.Is(err, rate.ErrNothingTaken) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if n := on.count("release"); n != 0 {
			t.Errorf("%d releases of nothing", n)
		}
		set(on, &on.calls, nil)
		set(on, &on.holders, nil)
		set(on, &on.acquire, func() (bool, time.Duration, error) { return false, 0, errBroken })
		if _, err := s.Acquire(t.Context(), "k"); !errors.Is(err, errBroken) {
			t.Errorf("got %v", err)
		}
		synctest.Wait() // it is released behind the answer
		set(on, &on.acquire, func() (bool, time.Duration, error) { time.Sleep(5 * time.Second); return true, 0, nil })
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Acquire(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute)
		set(on, &on.acquire, granted)
		set(on, &on.commit, func() error { return errBroken })
		if _, err := s.TryAcquireIf(t.Context(), "k", 1, func(context.Context, rate.Session) error { return nil }); !errors.Is(err, errBroken) {
			t.Errorf("got %v", err)
		}
		on.mu.Lock()
		defer on.mu.Unlock()
		if !slices.Equal(on.calls, []string{"acquire", "release", "acquire", "release", "acquire", "commit", "release"}) ||
			on.holders[0] != on.holders[1] || on.holders[2] != on.holders[3] || on.holders[0] == on.holders[2] || on.holders[4] != on.holders[6] {
			t.Errorf("calls: %v of %v", on.calls, on.holders)
		}
	})
}

// The error of a condition is the caller's own, also if it is one of Postgres's, and the transaction is undone.
func TestTheErrorOfAConditionIsReturned(t *testing.T) {
	t.Parallel()
	on := &server{acquire: granted}
	inBubble(t, on, Config{}, func(t *testing.T, s *Semaphore) {
		own := &pgconn.PgError{Code: "42P01"} // the caller's table is missing
		_, err := s.TryAcquireIf(t.Context(), "k", 1, func(context.Context, rate.Session) error { return own })
		if !errors.Is(err, own) || errors.Is(err, rate.ErrNotMigrated) || !slices.Equal(get(on, &on.calls), []string{"acquire", "rollback"}) {
			t.Errorf("got %v; calls: %v", err, get(on, &on.calls))
		}
	})
}

// Above READ COMMITTED Postgres undoes a call that others have outrun: it is made again, and a wait goes on.
func TestACallThatWasOutrunIsMadeAgain(t *testing.T) {
	t.Parallel()
	outrun := &pgconn.PgError{Code: "40001"}
	on := &server{renew: yes, release: yes}
	inBubble(t, on, Config{Timeout: time.Second}, func(t *testing.T, s *Semaphore) {
		set(on, &on.acquire, func() (bool, time.Duration, error) {
			if on.count("acquire") == 1 {
				return false, 0, outrun
			}
			return true, 0, nil
		})
		if err := acquiredIf(t, s).Release(t.Context()); err != nil {
			t.Error(err)
		}
		s.session = once{s.session}
		asked := on.count("acquire")
		set(on, &on.acquire, func() (bool, time.Duration, error) {
			switch on.count("acquire") - asked {
			case 1:
				return false, time.Minute, nil // it waits
			case 2, 3:
				return false, 0, outrun
			}
			return true, 0, nil
		})
		if err := acquired(t, s).Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// once makes a call once, as where no time is left for another.
type once struct{ rate.Session }

func (once) Autocommits() bool { return false }

// freeAfter has no place until so long from now.
func freeAfter(d time.Duration) func() (bool, time.Duration, error) {
	began := time.Now()
	return func() (bool, time.Duration, error) {
		left := d - time.Since(began)
		return left <= 0, left, nil
	}
}

// In line: a place is asked for when it is free, the wait ends with MaxWait, and when the first leaves the next
// one asks.
func TestTheFirstInLineAsks(t *testing.T) {
	t.Parallel()
	on := &server{renew: yes, release: yes}
	inBubble(t, on, Config{Poll: time.Hour, MaxWait: 10 * time.Minute}, func(t *testing.T, s *Semaphore) {
		waits := func(ctx context.Context, want error, until time.Duration) func() {
			began, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				p, err := s.Acquire(ctx, "k")
				if !errors.Is(err, want) || time.Since(began).Round(time.Second) != until { // a poll is a millisecond at least
					t.Errorf("after %v, want %v: %v", time.Since(began), until, err)
				}
				if err == nil {
					_ = p.Release(t.Context())
				}
			}()
			synctest.Wait()
			return func() { <-done }
		}
		set(on, &on.acquire, freeAfter(time.Minute))
		waits(t.Context(), nil, time.Minute)()
		if n := on.count("acquire"); n > 40 { // the pauses double
			t.Errorf("%d questions", n)
			return
		}
		set(on, &on.acquire, freeAfter(time.Hour))
		waits(t.Context(), ErrFull, 10*time.Minute)()

		set(on, &on.acquire, freeAfter(3*time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first, second := waits(ctx, context.DeadlineExceeded, time.Second), waits(t.Context(), nil, 3*time.Minute)
		first()
		second()
		if got := s.Stats(); got != (Stats{Acquired: 2, Refused: 1}) {
			t.Errorf("%+v", got)
		}

		set(on, &on.acquire, granted)
		p := acquired(t, s)
		set(on, &on.acquire, func() (bool, time.Duration, error) { return false, time.Hour, nil })
		third := waits(t.Context(), nil, time.Minute)
		set(on, &on.acquire, granted)
		asked := on.count("acquire")
		if _, ok, err := s.TryAcquire(t.Context(), "k"); ok || err != nil || on.count("acquire") != asked { // others came before
			t.Errorf("it has jumped the queue: %t, %v", ok, err)
		}
		set(on, &on.acquire, func() (bool, time.Duration, error) { return on.count("release") > 2, time.Hour, nil })
		time.Sleep(time.Minute)
		if err := p.Release(t.Context()); err != nil { // which lets the first one ask at once
			t.Error(err)
		}
		third()
	})
}
