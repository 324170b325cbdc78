package semaphore

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func TestNewNamesWhatItRefuses(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for want, config := range map[string]Config{
		"Config.Name":              {Places: 1},
		"Config.Places is 0":       {Name: "a"},
		"Config.Places is -1":      {Name: "a", Places: -1, FromTable: true},
		"Config.TTL is 1ms":        {Name: "a", Places: 1, TTL: time.Millisecond},
		"Config.TTL is 25h":        {Name: "a", Places: 1, TTL: 25 * time.Hour},
		"Config.Timeout is 31s":    {Name: "a", Places: 1, Timeout: 31 * time.Second},
		"Config.MaxWait is -1ns":   {Name: "a", Places: 1, MaxWait: -1},
		"Config.Poll is 1µs":       {Name: "a", Places: 1, Poll: time.Microsecond},
		"Config.Holder has 201":    {Name: "a", Places: 1, Holder: strings.Repeat("h", 201)},
		"Config.Holder: pglimit: ": {Name: "a", Places: 1, Holder: "a\x00"},
	} {
		if _, err := New(pool, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if _, err := New((*pgxpool.Pool)(nil), Config{Name: "a", Places: 1}); err == nil || !strings.Contains(err.Error(), "pool is nil") {
		t.Errorf("no pool: %v", err)
	}
	if _, err := New(pool, Config{Name: "a", Places: 1, TTL: minTTL}); err != nil {
		t.Errorf("the shortest TTL: %v", err)
	}
	if _, err := New(pool, Config{Name: "a", FromTable: true}); err != nil {
		t.Errorf("places from the table alone: %v", err)
	}
}
