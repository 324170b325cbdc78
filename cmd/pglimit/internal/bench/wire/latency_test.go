package wire

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestLatencyAddsUp(t *testing.T) {
	t.Parallel()
	const latency = 50 * time.Millisecond
	pool, meter := open(t, serverURL(t), 1, latency)
	ctx := t.Context()
	began := time.Now()
	must(t, pool.Ping(ctx))
	// The handshake of TCP is one more than what is counted.
	if took, least := time.Since(began), latency*time.Duration(meter.Trips()+1); took < least {
		t.Errorf("connecting and a ping took %v, want %v at least", took, least)
	}
	for _, test := range []struct {
		what  string
		trips int64
		work  func() error
	}{
		{"one query", 1, func() error {
			_, err := pool.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol)
			return err
		}},
		{"begin and commit", 2, func() error {
			return pgx.BeginFunc(ctx, pool, func(pgx.Tx) error { return nil })
		}},
		{"an answer of many packets", 1, func() error {
			_, err := pool.Exec(ctx, "select repeat('x', 1000) from generate_series(1, 10000)", pgx.QueryExecModeSimpleProtocol)
			return err
		}},
	} {
		began := time.Now()
		got := trips(meter, func() { must(t, test.work()) })
		took := time.Since(began)
		if least := latency * time.Duration(test.trips); got != test.trips || took < least || took > least+20*time.Second { // of many packets each would add to it
			t.Errorf("%s: %d round trips in %v, want %d in %v or little more", test.what, got, took, test.trips, least)
		}
	}
}

// A time limit that is shorter than the latency is one.
func TestATimeLimitBelowTheLatency(t *testing.T) {
	t.Parallel()
	pool, _ := open(t, serverURL(t), 1, 300*time.Millisecond)
	must(t, pool.Ping(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := pool.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want %v", err, context.DeadlineExceeded)
	}
}

// Dialling waits too, and no longer than the context.
func TestCancelledWhileDialling(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(serverURL(t))
	must(t, err)
	var m Meter
	Wrap(&config.ConnConfig.Config, &m, time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if !errors.Is(err, context.DeadlineExceeded) || conn != nil || m.Trips() != 0 {
		t.Errorf("%v, counted %d", err, m.Trips())
	}
}

// Callers who give up at any moment, also while an answer is held back, leave the others with
// their own answers.
func TestNoAnswerIsMixedUp(t *testing.T) {
	t.Parallel()
	pool, _ := open(t, serverURL(t), 4, time.Millisecond)
	var asking sync.WaitGroup
	var answered, gaveUp atomic.Int64
	for caller := range 8 {
		asking.Go(func() {
			patience := time.Millisecond // about as long as it takes, on any machine
			for i := range 40 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				want, got := caller*1000+i, 0
				err := pool.QueryRow(ctx, "select $1::int", want).Scan(&got)
				cancel()
				switch {
				case err != nil:
					gaveUp.Add(1)
					patience += patience / 2
				case got != want:
					t.Errorf("asked for %d, got %d", want, got)
				default:
					answered.Add(1)
					patience -= patience / 3
				}
			}
		})
	}
	asking.Wait()
	if answered.Load() == 0 || gaveUp.Load() == 0 {
		t.Errorf("%d were answered, %d gave up: this shows nothing", answered.Load(), gaveUp.Load())
	}
}
