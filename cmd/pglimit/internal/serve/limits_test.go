package serve

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/strategies"
)

func TestEveryFieldOfTheFileIsHeeded(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "limits.yaml")
	text := `
limiters:
  leases: {limit: 100/1m burst 20, timeout: 2s, durability: durable, id_ttl: 10m, max_waiting: 7, lanes: 3, memory_ttl: 3s, leases: true, lease_ttl: 4s}
  blocks: {limit: 1/3s, block: {after: 1, within: 2s, for: 3s, max: 4s, forget: 5s}}
  upsert: {limit: 10/s, strategy: upsert, new_keys: 100/s burst 500}
`
	must(t, os.WriteFile(name, []byte(text), 0o600))
	got, err := ReadFile(name)
	must(t, err)
	want := []Limit{
		{strategies.TokenBucket{}, pglimit.Config{
			Name: "blocks", Limit: pglimit.Every(3 * time.Second),
			Block: pglimit.Block{After: 1, Within: 2 * time.Second, For: 3 * time.Second, Max: 4 * time.Second, Forget: 5 * time.Second},
		}},
		{strategies.TokenBucket{}, pglimit.Config{
			Name: "leases", Limit: pglimit.PerMinute(100).WithBurst(20), Timeout: 2 * time.Second, Durability: pglimit.Durable, IDTTL: 10 * time.Minute,
			MaxWaiting: 7, Combine: pglimit.Combine{Lanes: 3}, Memory: pglimit.Memory{TTL: 3 * time.Second}, Leases: pglimit.Leases{On: true, TTL: 4 * time.Second},
		}},
		{strategies.Upsert{}, pglimit.Config{Name: "upsert", Limit: pglimit.PerSecond(10), NewKeys: pglimit.NewKeys{Limit: pglimit.PerSecond(100).WithBurst(500)}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nnot\n%+v", got, want)
	}
	for field := range strings.SplitSeq(limiterFields+", "+blockFields, ", ") {
		if !strings.Contains(text, field+":") && field != "on_error" && field != "instances" { // see TestOnErrorAnswersInAnOutage
			t.Errorf("the test leaves out %s", field)
		}
	}
}

func TestBadFilesAreRefusedByLineOrField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      "there are no limiters",
		"limiter: {}":                           "line 1: there is no field limiter here, only limiters",
		"limiters: [a]":                         "line 1: a list is not limiters by name",
		"limiters:\n  a: 10/s":                  "line 2: `10/s` is not the settings of a limiter: write them like {limit: 10/s burst 20}",
		"limiters:\n  a: {limit":                "line 2: did not find expected ',' or '}'",
		"limiters:\n\ta: {limit: 1/s}":          "line 2: indent with spaces, not with a tab",
		"limiters:\n  a: {limit: 1/s}\n  b: @x": "line 3: found character that cannot start any token",
		"limiters:\n  a: {limit: 1/s}\n\n\n  \tb: {limit: 1/s}\n": "line 5: indent with spaces, not with a tab",
		"a text":                               "line 1: `a text` is not a file of limiters: write \"limiters:\", and",
		"limiters:\n  a:\n":                    `limiters.a: limit "": it must be tokens/period`,
		"limiters: {a: {limit: 1/s}}\n---\n{}": "more than one YAML document",
		"limiters:\n  a: {limit: 1/s}\n  a: {limit: 2/s}": `line 3: mapping key "a" already defined at line 2`,
		"limiters:\n  \"\": {limit: 1/s}":                 "limiters.: the name is empty",
		"limiters:\n  a: {limit: 1/s}\n  ~: {limit: 1/s}": "line 3: a name is missing here, or is ~ or null",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %s", text, err, want)
		}
	}
	for field, want := range map[string]string{
		"limit: ten":                                         `limiters.a: limit "ten": it must be tokens/period`,
		"limit: 10/s burst 0":                                `limiters.a: burst is 0: it must be at least 1`,
		"limit: 1/s\n    strategy: redis":                    `limiters.a: there is no strategy "redis", only token_bucket`,
		"strategy: exclusion_range\n    limit: 2/s":          "limiters.a: limit burst is 2",
		"limit: 1/s\n    timeout: -1s":                       "limiters.a: timeout is -1s: it must be positive",
		"limit: 1/s\n    timeout: 3":                         "line 4: `3` is not a duration such as",
		"limit: 1/s\n    on_error: opne":                     `limiters.a: on_error is "opne": it must be error, open, closed or local`,
		"limit: 1/s\n    on_error: local":                    "limiters.a: instances is 0",
		"limit: 1/s\n    instances: 3":                       "limiters.a: instances goes with on_error: local only",
		"limit: 1/s\n    durability: hard":                   "limiters.a: durability",
		"limit: 1/s\n    id_ttl: 48h":                        "limiters.a: id_ttl is 48h0m0s: it must be from 1ms to 24h0m0s",
		"limit: 1/s\n    lanes: -1":                          "limiters.a: lanes is -1",
		"limit: 1/s\n    strategy: upsert\n    leases: true": "limiters.a: leases is more than the strategy upsert can do: only token_bucket can",
		"limit: 1/s\n    strategy: upsert\n    block: {after: 1, within: 1s, for: 1s, max: 1s}":  "limiters.a: block is more than the strategy upsert can do: only token_bucket can",
		"limit: 1/s\n    leases: true\n    block: {after: 1, within: 1s, for: 1s, max: 1s}":      "limiters.a: leases is true: with block it must be false",
		"limit: 1/s\n    block: {after: 1, within: 1s, for: 1s}":                                 "limiters.a: block max is 0s: it must be from for, 1s, to 87600h0m0s",
		"limit: 1/s\n    block:\n      after: 1\n      within: 1s\n      for: 2s\n      max: 1s": "limiters.a: block max is 1s: it must be from for, 2s",
		"limit: 1/s\n    block: {befor: 1}":                                                      "line 4: there is no field befor here, only after, within, for, max, forget",
		"limit: 1/s\n    new_keys: many":                                                         `limiters.a: new_keys: limit "many": it must be tokens/period`,
		"limit: 1/s\n    strategy: exclusion_range\n    new_keys: 2/s":                           "limiters.a: new_keys burst is 2: exclusion_range keeps a burst of 1 only",
		"limit: 1/s\n    bust: 1":                                                                "line 4: there is no field bust here, only limit, strategy",
	} {
		text := "limiters:\n  a:\n    " + field + "\n"
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %s", field, err, want)
		}
	}
}

func TestTheNameOfTheTableIsRefused(t *testing.T) {
	t.Parallel()
	limits, err := parse([]byte("limiters: {(table): {limit: 1/s}}"))
	must(t, err)
	if _, err := New(Config{Limits: limits, Pool: pglimittest.Memory().Pool()}); err == nil || !strings.Contains(err.Error(), "(table)") {
		t.Errorf("%v", err)
	}
}
