package shards_test

import (
	"math"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/internal/shards"
)

// What Postgres says of hashtext.
func TestHash(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int32{
		"": -1477818771, "a": 1075015857, "user:42": -1579110294, "hello world": 1021725223, "ü": 1832814172,
		strings.Repeat("x", 12): 631527812, strings.Repeat("x", 25): 733930510,
	} {
		if got := shards.Hash(key); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
}

func TestShardOfAKey(t *testing.T) {
	t.Parallel()
	a, user := shards.Hash("a"), shards.Hash("user:42") // 1075015857 and -1579110294
	m, err := shards.NewMap([]int32{math.MinInt32, user, user + 1, a}, []int32{user - 1, user, a - 1, math.MaxInt32}, []string{"n1", "n2", "n3", "n4"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"user:42": 1, "a": 3, "": 2, "ü": 3} {
		if number, shard := m.Of(key); number != want || shard.Node != []string{"n1", "n2", "n3", "n4"}[want] {
			t.Errorf("%q is in shard %d on %s, want %d", key, number, shard.Node, want)
		}
	}
	for _, bounds := range [][2][]int32{
		{{}, {}},
		{{math.MinInt32}, {0}},
		{{math.MinInt32, 2}, {0, math.MaxInt32}},
		{{math.MinInt32, 0}, {0, math.MaxInt32}},
		{{0}, {math.MaxInt32}},
		{{math.MinInt32, 0}, {math.MaxInt32}},
		{{math.MinInt32, 0}, {-1}},
		{{math.MinInt32, 5, 3}, {4, 2, math.MaxInt32}},
	} {
		if m, err := shards.NewMap(bounds[0], bounds[1], make([]string, len(bounds[0]))); err == nil {
			t.Errorf("%v passes for a map: %+v", bounds, m)
		}
	}
	if m, err := shards.NewMap([]int32{math.MinInt32}, []int32{math.MaxInt32}, nil); err == nil {
		t.Errorf("a map of no nodes: %+v", m)
	}
}

func TestPart(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{"a": 12, "user:42": 2, "ü": 14} { // of the shards of a cluster with 16
		if got := shards.Part(key, 16); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
	if shards.Part("a", 1) != 0 {
		t.Error("there is only one part")
	}
}
