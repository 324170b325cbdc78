package bench

import (
	"math/bits"
	"math/rand/v2"
	"strconv"
)

// zipfExponent of [Zipf]: of 100,000 keys, the first gets 13 % of the requests and
// the first hundred 58 %.
const zipfExponent = 1.1

func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "user:" + strconv.Itoa(i)
	}
	return names
}

// picker draws the number of the key to ask for next. It belongs to one caller, and is
// a part of it: small objects of several callers would share a cache line.
type picker struct {
	keys   uint64
	random rand.PCG
	zipf   *rand.Zipf
}

// newPicker returns the picker of one caller. Callers with different numbers draw
// independently.
func (c Config) newPicker(caller int) picker {
	p := picker{keys: uint64(c.Keys), random: *c.source(streamKeys, caller)} //nolint:gosec // Validate bounds the keys
	if c.Distribution == Zipf && c.Keys > 1 {
		p.zipf = rand.NewZipf(c.random(streamKeys, caller), zipfExponent, 1, p.keys-1)
	}
	return p
}

func (p *picker) pick() uint32 {
	if p.keys == 1 {
		return 0
	}
	if p.zipf != nil {
		return uint32(p.zipf.Uint64()) //nolint:gosec // below keys
	}
	// A multiplication instead of a division. Of up to 10 million keys none is more
	// likely than another by more than one in 10^12.
	key, _ := bits.Mul64(p.random.Uint64(), p.keys)
	return uint32(key) //nolint:gosec // below keys
}

// The uses of randomness. Different streams of one seed are independent.
const (
	streamKeys uint64 = iota << 32
	streamArrivals
)

func (c Config) random(stream uint64, number int) *rand.Rand {
	return rand.New(c.source(stream, number)) //nolint:gosec // a load, not a secret
}

func (c Config) source(stream uint64, number int) *rand.PCG {
	return rand.NewPCG(c.Seed, stream+uint64(number)) //nolint:gosec // not negative
}
