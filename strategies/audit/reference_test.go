package audit_test

import (
	"math"
	"math/big"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// reference is a bucket as one would draw it on paper: a level of tokens in
// fractions, filled evenly, never above the burst.
type reference struct {
	limit pglimit.Limit
	level *big.Rat
	at    int64
}

func newReference(limit pglimit.Limit, at int64) *reference {
	return &reference{limit: limit, level: tokens(limit.Capacity()), at: at}
}

// take grants what there is of the wanted tokens, in whole units. Times do not go
// backwards.
func (b *reference) take(at, wanted, unit int64) (granted int64) {
	b.level.Add(b.level, refilled(b.limit, b.at, at))
	if burst := tokens(b.limit.Capacity()); b.level.Cmp(burst) > 0 {
		b.level.Set(burst)
	}
	b.at = at
	whole := new(big.Int).Quo(b.level.Num(), b.level.Denom()).Int64()
	granted = min(wanted, whole) / unit * unit
	b.level.Sub(b.level, tokens(granted))
	return granted
}

func tokens(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// refilled tokens from one microsecond to another.
func refilled(limit pglimit.Limit, from, to int64) *big.Rat {
	elapsed := new(big.Int).Sub(big.NewInt(to), big.NewInt(from))
	elapsed.Mul(elapsed, big.NewInt(int64(time.Microsecond)))
	elapsed.Mul(elapsed, big.NewInt(limit.Tokens))
	return new(big.Rat).SetFrac(elapsed, big.NewInt(int64(limit.Period)))
}

// excess is by how much the grants in a span, ends included, exceed what the limit
// allows in it. It is the first promise, word for word.
func excess(limit pglimit.Limit, events []audit.Event, from, to int64) *big.Rat {
	over := new(big.Rat).Neg(tokens(limit.Capacity()))
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
func worstExcess(limit pglimit.Limit, events []audit.Event) int64 {
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
func notDue(limit pglimit.Limit, events []audit.Event) (n int64) {
	for _, denial := range events {
		if denial.Contended || denial.Granted > denial.Wanted-denial.Unit {
			continue
		}
		unit := tokens(denial.Unit)
		fits := unit.Cmp(tokens(limit.Capacity())) <= 0
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

// limits: the extremes, primes, and anything between.
var limits = rapid.Custom(func(t *rapid.T) pglimit.Limit {
	limit := rapid.OneOf(
		rapid.SampledFrom([]pglimit.Limit{
			pglimit.PerSecond(1),
			pglimit.PerSecond(3),
			pglimit.PerSecond(pglimit.MaxRate),
			pglimit.Every(time.Nanosecond),
			pglimit.Every(365 * 24 * time.Hour),
			pglimit.Every(10 * time.Minute),
			{Tokens: 999_999_937, Period: time.Second},
			{Tokens: 7, Period: 1_000_000_007},
			{Tokens: 7919, Period: 104_729 * time.Microsecond},
		}),
		rapid.Custom(func(t *rapid.T) pglimit.Limit {
			period := rapid.Int64Range(1, int64(10*365*24*time.Hour)).Draw(t, "period")
			return pglimit.Limit{
				Tokens: rapid.Int64Range(1, min(period, 1_000_000_000_000)).Draw(t, "tokens"),
				Period: time.Duration(period),
			}
		}),
	).Draw(t, "rate")
	perToken, _ := limit.Parts()
	most := int64(1<<62) / perToken
	return limit.WithBurst(rapid.OneOf(
		rapid.Int64Range(1, min(most, 20)),
		rapid.Int64Range(1, most),
	).Draw(t, "burst"))
})

// gaps between two requests, in microseconds, at which something may change: a
// token has just come back, or just not, or the bucket is full.
func gaps(limit pglimit.Limit, least int64) *rapid.Generator[int64] {
	perToken, perMicrosecond := limit.Parts()
	token := (perToken-1)/perMicrosecond + 1
	full := (limit.Capacity()*perToken-1)/perMicrosecond + 1
	return rapid.Custom(func(t *rapid.T) int64 {
		return max(least, rapid.OneOf(
			rapid.SampledFrom([]int64{0, 0, 1, token - 1, token, token + 1}),
			rapid.Int64Range(0, 3*token),
			rapid.Int64Range(0, min(full, 1<<40)),
		).Draw(t, "gap"))
	})
}

// began is where generated histories begin, in microseconds since 1970.
const began = 1_790_000_000_000_000

// exact draws a history that the reference bucket would make, in order of time, with
// at least so many microseconds between two events.
func exact(t *rapid.T, limit pglimit.Limit, least int64) []audit.Event {
	bucket := newReference(limit, began)
	gap := gaps(limit, least)
	events := make([]audit.Event, rapid.IntRange(1, 30).Draw(t, "events"))
	at := int64(began)
	for i := range events {
		at += gap.Draw(t, "gap")
		unit := rapid.OneOf(
			rapid.Just(int64(1)),
			rapid.Int64Range(1, limit.Capacity()),
		).Draw(t, "unit")
		wanted := unit * rapid.Int64Range(1, min(4, math.MaxInt64/unit)).Draw(t, "units")
		events[i] = audit.Event{At: at, Wanted: wanted, Unit: unit, Granted: bucket.take(at, wanted, unit)}
	}
	return events
}
