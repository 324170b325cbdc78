package top

import (
	"math/rand/v2"
	"strconv"
	"testing"
)

// Of n requests, a key's number is never too high and at most n/100 too low, and memory is bounded, whatever is asked.
func TestNumbersAreWithinTheirBound(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range 300 {
		keys := 1 + random.IntN(500)
		skew := 1 + random.Float64()*3
		zipf := rand.NewZipf(random, skew+0.01, 1, uint64(keys))
		var s sketch
		exact, all := make(map[string]int64), int64(0)
		for i := range random.IntN(5000) {
			key := strconv.FormatUint(zipf.Uint64(), 10)
			switch round % 3 {
			case 0:
				key = strconv.Itoa(random.IntN(keys)) // all alike
			case 1:
				if i%2 == 0 {
					key = "once:" + strconv.Itoa(i) // a flood of new keys
				}
			}
			n := int64(1)
			if random.IntN(10) == 0 {
				n = sample
			}
			s.add(key, n)
			exact[key] += n
			all += n
		}
		if len(s.counters) > counters || len(s.index) != len(s.counters) {
			t.Fatalf("seed %d, round %d: %d counters, %d keys", seed, round, len(s.counters), len(s.index))
		}
		for key, n := range exact {
			number := int64(0)
			if i, ok := s.index[key]; ok {
				number = s.counters[i].atLeast()
			}
			if number > n || number < n-all/counters {
				t.Fatalf("seed %d, round %d: %s was counted %d times of %d, and has %d", seed, round, key, n, all, number)
			}
		}
	}
}
