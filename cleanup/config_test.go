package cleanup

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// unconnected is a pool that nobody asks anything.
func unconnected(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestNewNamesWhatItRefuses(t *testing.T) {
	t.Parallel()
	pool, some := unconnected(t), []rate.Sweeper{rows("a", 1)}
	for _, test := range []struct {
		pool       *pgxpool.Pool
		strategies []rate.Sweeper
		config     Config
		want       string
	}{
		{pool, some, Config{Interval: -time.Second}, "Config.Interval is -1s"},
		{pool, some, Config{Interval: time.Microsecond}, "Config.Interval is 1µs"},
		{pool, some, Config{BatchSize: -1}, "Config.BatchSize is -1"},
		{pool, some, Config{Timeout: -1}, "Config.Timeout is -1ns"},
		{pool, nil, Config{}, "pass strategies.All()"},
		{pool, []rate.Sweeper{nil}, Config{}, "strategy 0 is nil"},
		{nil, some, Config{}, "pool is nil"},
	} {
		if _, err := New(test.pool, test.strategies, test.config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want one with %q", err, test.want)
		}
	}
	if _, err := New(pool, some, Config{Pause: -1}); err != nil {
		t.Errorf("no pause: got %v, want no error", err)
	}
}

func TestNewLockerNamesWhatItRefuses(t *testing.T) {
	t.Parallel()
	pool := unconnected(t)
	for _, test := range []struct {
		pool   *pgxpool.Pool
		config LockerConfig
		want   string
	}{
		{pool, LockerConfig{Interval: -1}, "LockerConfig.Interval is -1ns"},
		{pool, LockerConfig{TTL: time.Microsecond}, "TTL is 1µs"},
		{nil, LockerConfig{}, "pool is nil"},
	} {
		if _, err := NewLocker(test.pool, test.config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want one with %q", err, test.want)
		}
	}
}
