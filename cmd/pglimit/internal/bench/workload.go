package bench

import (
	"math/bits"
	"math/rand/v2"
	"strconv"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "user:" + strconv.Itoa(i)
	}
	return names
}

// picker draws the number of the key to ask for next, and what the request costs. It
// belongs to one caller, and is a part of it: small objects of several callers would share
// a cache line.
type picker struct {
	keys   uint64
	random rand.PCG
	zipf   *rand.Zipf
	upTo   []uint64 // costs: the n-th is drawn below this, of 2^64; nil if all requests cost the same
}

// newPicker returns the picker of one caller. Callers with different numbers draw
// independently.
func newPicker(s scenario.Scenario, costs []scenario.Cost, seed uint64, caller int) picker {
	p := picker{keys: uint64(s.Keys), random: *source(seed, streamKeys, caller)} //nolint:gosec // Validate bounds the keys
	if s.Distribution == scenario.Zipf && s.Keys > 1 {
		p.zipf = rand.NewZipf(rand.New(source(seed, streamKeys, caller)), s.Exponent, 1, p.keys-1) //nolint:gosec // a load, not a secret
	}
	if len(costs) > 1 {
		p.upTo = thresholds(costs)
	}
	return p
}

// thresholds divides all numbers of 64 bits as the shares say. The last has no upper end.
func thresholds(costs []scenario.Cost) []uint64 {
	sum, sofar := 0.0, 0.0
	for _, c := range costs {
		sum += c.Share
	}
	upTo := make([]uint64, 0, len(costs)-1)
	for _, c := range costs[:len(costs)-1] {
		sofar += c.Share
		upTo = append(upTo, uint64(sofar/sum*(1<<63))*2)
	}
	return upTo
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

// pickCost returns the number of the cost.
func (p *picker) pickCost() uint8 {
	if p.upTo == nil {
		return 0
	}
	drawn := p.random.Uint64()
	for i, end := range p.upTo {
		if drawn < end {
			return uint8(i)
		}
	}
	return uint8(len(p.upTo)) //nolint:gosec // as above
}

// The uses of randomness. Different streams of one seed are independent.
const (
	streamKeys uint64 = iota << 32
	streamArrivals
	streamTouch
)

func source(seed, stream uint64, number int) *rand.PCG {
	return rand.NewPCG(seed, stream+uint64(number)) //nolint:gosec // not negative
}
