package text

import (
	"fmt"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/advice"
	"strings"
)

func TestTry(t *testing.T) {
	for _, n := range []int{1, 3} {
		s := Suite(suite(n), advice.Of(suite(n)), Options{})
		fmt.Println(s[strings.Index(s, "with comb"):], strings.Count(s, "\n"))
	}
}
