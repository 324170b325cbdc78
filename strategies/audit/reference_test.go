package audit_test

import (
	"math"
	"math/big"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// reference is a bucket as one would draw it on paper: a level of tokens in
// fractions, filled evenly, never above the burst.
type reference struct {
	limit rate.Limit
	level *big.Rat
	at    int64
}

func newReference(limit rate.Limit, at int64) *reference {
	return &reference{limit: limit, level: tokens(limit.Burst), at: at}
}

// take grants what there is of the wanted tokens, in whole units. Times do not go
// backwards.
func (b *reference) take(at, wanted, unit int64) (granted int64) {
	b.level.Add(b.level, refilled(b.limit, b.at, at))
	if burst := tokens(b.limit.Burst); b.level.Cmp(burst) > 0 {
		b.level.Set(burst)
	}
	b.at = at
	whole := new(big.Int).Quo(b.level.Num(), b.level.Denom()).Int64()
	granted = min(wanted, whole) / unit * unit
	b.level.Sub(b.level, tokens(granted))
	return granted
}

func tokens(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// price of a token: the nanoseconds in which it comes back, a whole number.
func price(limit rate.Limit) int64 {
	whole, rest := new(big.Int).QuoRem(big.NewInt(int64(limit.Period)), big.NewInt(limit.Tokens), new(big.Int))
	return whole.Int64() + int64(rest.Sign())
}

// refilled tokens from one nanosecond to another.
func refilled(limit rate.Limit, from, to int64) *big.Rat {
	elapsed := new(big.Int).Sub(big.NewInt(to), big.NewInt(from))
	return new(big.Rat).SetFrac(elapsed, big.NewInt(price(limit)))
}

// excess is by how much the grants in a span, ends included, exceed what the limit
// allows in it. It is the first promise, word for word.
func excess(limit rate.Limit, events []audit.Event, from, to int64) *big.Rat {
	over := new(big.Rat).Neg(tokens(limit.Burst))
	over.Sub(over, refilled(limit, from, to))
	for _, e := range events {
		if e.Granted > 0 && from <= e.At && e.At <= to {
			over.Add(over, tokens(e.Granted))
		}
	}
	return over
}

// worstExcess of all spans that begin and end with a grant, in whole tokens rounded
// up; 0 if there is none.
func worstExcess(limit rate.Limit, events []audit.Event) int64 {
	worst := new(big.Rat)
	for _, first := range events {
		for _, last := range events {
			if first.Granted > 0 && last.Granted > 0 && first.At <= last.At {
				if over := excess(limit, events, first.At, last.At); over.Cmp(worst) > 0 {
					worst = over
				}
			}
		}
	}
	return roundedUp(worst)
}

// notDue counts the denials after which one unit more would have kept the first
// promise in every span that ends there: the second promise.
func notDue(limit rate.Limit, events []audit.Event) (n int64) {
	for _, denial := range events {
		if denial.Contended || denial.Granted > denial.Wanted-denial.Unit {
			continue
		}
		unit := tokens(denial.Unit)
		fits := unit.Cmp(tokens(limit.Burst)) <= 0
		for _, first := range events {
			if first.Granted > 0 && first.At <= denial.At {
				over := excess(limit, events, first.At, denial.At)
				fits = fits && over.Add(over, unit).Sign() <= 0
			}
		}
		if fits {
			n++
		}
	}
	return n
}

func roundedUp(x *big.Rat) int64 {
	quotient, rest := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	if !quotient.IsInt64() {
		return math.MaxInt64
	}
	return quotient.Int64()
}

// limits: extremes, rates that divide evenly and rates that just do not, of any size.
var limits = rapid.Custom(func(t *rapid.T) rate.Limit {
	limit := rapid.OneOf(
		rapid.SampledFrom([]rate.Limit{
			rate.PerSecond(1),
			rate.PerSecond(3),
			rate.PerSecond(rate.MaxRate),
			rate.Every(time.Nanosecond),
			rate.Every(2 * time.Nanosecond),
			rate.Every(365 * 24 * time.Hour),
			rate.Every(10 * time.Minute),
			{Tokens: 7, Period: 1_000_000_007},
			{Tokens: 7919, Period: 104_729 * time.Microsecond},
		}),
		rapid.Custom(func(t *rapid.T) rate.Limit {
			token := int64(1) << rapid.IntRange(0, 55).Draw(t, "size of a token")
			token += rapid.Int64Range(0, token-1).Draw(t, "token")
			tokens := rapid.Int64Range(1, max(1, min(1_000_000, int64(1<<56)/token))).Draw(t, "tokens")
			// Of so many nanoseconds, one less or one more is another price, or just not.
			rest := rapid.SampledFrom([]int64{0, 0, 1, tokens - 1, -1}).Draw(t, "rest")
			return rate.Limit{Tokens: tokens, Period: time.Duration(max(tokens, token*tokens-rest))}
		}),
	).Draw(t, "rate")
	most := century / price(limit)
	return limit.WithBurst(rapid.OneOf(
		rapid.Int64Range(1, min(most, 20)),
		rapid.Int64Range(1, most),
		rapid.Just(most),
	).Draw(t, "burst"))
}).Filter(func(l rate.Limit) bool { return l.Validate() == nil })

const century = int64(100 * 365 * 24 * time.Hour)

// gaps between two requests at which something may change: a token has just come back,
// or just not, or the bucket is full, or just not. Thirty of them fit an int64.
func gaps(limit rate.Limit, least int64) *rapid.Generator[int64] {
	const longest = 5 * 365 * 24 * time.Hour
	token := price(limit)
	full := limit.Burst * token
	return rapid.Custom(func(t *rapid.T) int64 {
		return max(least, min(int64(longest), rapid.OneOf(
			rapid.SampledFrom([]int64{0, 0, 1, token - 1, token, token + 1, full - token, full - 1, full, full + 1}),
			rapid.Int64Range(0, 3*token),
			rapid.Int64Range(0, full),
		).Draw(t, "gap")))
	})
}

// began is where generated histories begin, in nanoseconds since 1970.
const began = 1_790_000_000_000_000_000

// exact draws a history that the reference bucket would make, in order of time, with
// at least so many nanoseconds between two events.
func exact(t *rapid.T, limit rate.Limit, least int64) []audit.Event {
	bucket := newReference(limit, began)
	gap := gaps(limit, least)
	events := make([]audit.Event, rapid.IntRange(1, 30).Draw(t, "events"))
	at := int64(began)
	for i := range events {
		at += gap.Draw(t, "gap")
		unit := rapid.OneOf(
			rapid.Just(int64(1)),
			rapid.Int64Range(1, limit.Burst),
			rapid.Just(limit.Burst),
		).Draw(t, "unit")
		wanted := unit * rapid.Int64Range(1, min(4, math.MaxInt64/unit)).Draw(t, "units")
		events[i] = audit.Event{At: at, Wanted: wanted, Unit: unit, Granted: bucket.take(at, wanted, unit)}
	}
	return events
}
