package bench

import (
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

func draw(c scenario.Scenario, caller, n int) []int {
	counts := make([]int, c.Keys)
	p := newPicker(c, c.Costs, 1, caller)
	for range n {
		counts[p.pick()]++
	}
	return counts
}

func TestUniformDrawsEveryKeyAsOften(t *testing.T) {
	t.Parallel()
	c := scenario.Custom()
	c.Keys = 100
	for key, n := range draw(c, 0, 1_000_000) {
		if n < 9_500 || n > 10_500 { // five standard deviations
			t.Errorf("key %d was drawn %d times of 1,000,000, want 10,000", key, n)
		}
	}
}

func TestZipfDrawsAFewKeysMost(t *testing.T) {
	t.Parallel()
	c := scenario.Custom()
	c.Keys, c.Distribution = 100_000, scenario.Zipf
	counts := draw(c, 0, 1_000_000)
	hundred := 0
	for _, n := range counts[:100] {
		hundred += n
	}
	if first := counts[0]; first < 120_000 || first > 150_000 {
		t.Errorf("the first key was drawn %d times of 1,000,000, want 13 %%", first)
	}
	if hundred < 570_000 || hundred > 590_000 {
		t.Errorf("the first hundred keys were drawn %d times of 1,000,000, want 58 %%", hundred)
	}
	// Proportional to 1/n^1.1: the tenth 12.6 times less often than the first.
	if ratio := float64(counts[0]) / float64(counts[9]); ratio < 12 || ratio > 13.2 {
		t.Errorf("the first key was drawn %.1f times as often as the tenth, want 12.6", ratio)
	}
}

func TestSeedFixesTheKeys(t *testing.T) {
	t.Parallel()
	c := scenario.Custom()
	c.Keys = 1_000_000
	sequence := func(seed uint64, caller int) (keys [8]uint32) {
		p := newPicker(c, c.Costs, seed, caller)
		for i := range keys {
			keys[i] = p.pick()
		}
		return keys
	}
	if first, again := sequence(1, 3), sequence(1, 3); first != again {
		t.Error("one seed, one caller, two sequences of keys")
	}
	if sequence(1, 3) == sequence(1, 4) || sequence(1, 3) == sequence(2, 3) {
		t.Error("another caller or another seed, and the same keys")
	}
}

func TestCostsAreDrawnByTheirShare(t *testing.T) {
	t.Parallel()
	c := scenario.Custom()
	c.Costs = []scenario.Cost{{Tokens: 1, Share: 6}, {Tokens: 5, Share: 3}, {Tokens: 20, Share: 1}}
	p := newPicker(c, c.Costs, 1, 0)
	var counts [3]int
	for range 100_000 {
		counts[p.pickCost()]++
	}
	for i, want := range []int{60_000, 30_000, 10_000} {
		if n := counts[i]; n < want-1000 || n > want+1000 {
			t.Errorf("cost %d was drawn %d times of 100,000, want %d", i, n, want)
		}
	}
}
