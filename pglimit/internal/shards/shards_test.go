package shards_test

import (
	"math"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/internal/shards"
)

func TestTryHash(t *testing.T) {
	for _, k := range []string{"", "a", "hello world", "user:42", "ü", strings.Repeat("x", 12), strings.Repeat("x", 25)} {
		t.Logf("{%q, %d},", k, shards.Hash(k))
	}
	_ = math.MaxInt32
}
