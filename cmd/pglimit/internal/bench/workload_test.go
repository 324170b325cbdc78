package bench

import "testing"

func draw(c Config, caller, n int) []int {
	counts := make([]int, c.Keys)
	p := c.newPicker(caller)
	for range n {
		counts[p.pick()]++
	}
	return counts
}

func TestUniformDrawsEveryKeyAsOften(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.Keys = 100
	for key, n := range draw(c, 0, 1_000_000) {
		if n < 9_500 || n > 10_500 { // five standard deviations
			t.Errorf("key %d was drawn %d times of 1,000,000, want 10,000", key, n)
		}
	}
}

func TestZipfDrawsAFewKeysMost(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.Keys, c.Distribution = 100_000, Zipf
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
	c := DefaultConfig()
	c.Keys = 1_000_000
	sequence := func(c Config, caller int) (keys [8]uint32) {
		p := c.newPicker(caller)
		for i := range keys {
			keys[i] = p.pick()
		}
		return keys
	}
	other := c
	other.Seed = 2
	again := c
	if sequence(c, 3) != sequence(again, 3) {
		t.Error("one seed, one caller, two sequences of keys")
	}
	if sequence(c, 3) == sequence(c, 4) || sequence(c, 3) == sequence(other, 3) {
		t.Error("another caller or another seed, and the same keys")
	}
}
