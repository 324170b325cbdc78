package bench

import (
	"math/rand/v2"
	"strconv"
)

// zipfExponent of [Zipf]: of 100,000 keys, the first gets 13 % of the requests and
// the first hundred 58 %.
const zipfExponent = 1.1

// keyNames are the keys that are asked for, by number.
func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "user:" + strconv.Itoa(i)
	}
	return names
}

// picker returns the number of the key to ask for next. It belongs to one caller.
type picker func() uint32

// newPicker is that of one caller. Callers with different numbers draw independently.
func (c Config) newPicker(caller int) picker {
	if c.Keys == 1 {
		return func() uint32 { return 0 }
	}
	random := c.random(streamKeys, caller)
	if c.Distribution == Zipf {
		zipf := rand.NewZipf(random, zipfExponent, 1, uint64(c.Keys-1)) //nolint:gosec // Validate bounds the keys
		return func() uint32 { return uint32(zipf.Uint64()) }           //nolint:gosec // below c.Keys
	}
	n := uint32(c.Keys) //nolint:gosec // Validate bounds the keys
	return func() uint32 { return random.Uint32N(n) }
}

// What randomness is for. Different streams of one seed are independent.
const (
	streamKeys uint64 = iota << 32
	streamArrivals
)

func (c Config) random(stream uint64, number int) *rand.Rand {
	return rand.New(rand.NewPCG(c.Seed, stream+uint64(number))) //nolint:gosec // a load, not a secret
}
