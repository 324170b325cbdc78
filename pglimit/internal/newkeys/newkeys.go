// Package newkeys bounds how many keys without a row get one.
package newkeys

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// Suffix is behind the name of a limiter whose new keys are counted.
	Suffix = " (new keys)"

	// rowLasts is how long a bucket that is not full is known to have a row. A sweep removes rows that have been full
	// for a minute, so this leaves ten seconds to a request that has passed. (A row may go earlier: by a Reset, a
	// step of the clock, or a GiveBack of exclusion_range. Then it is made again without a token, but takes the place
	// of one that had it.)
	rowLasts = 50 * time.Second

	// never is the RetryAfter of a request for more tokens than there can be.
	never = time.Hour
)

// Functions are what a Stage calls.
type Functions struct {
	Look func(ctx context.Context, peeks []*claims.Claim)  // asks Postgres
	Take func(ctx context.Context, tokens []*claims.Claim) // asks for tokens, unless they are known to be used up
}

// Stage asks for a token for each key without a row. If nil, it is switched off.
type Stage struct {
	Through atomic.Int64 // keys that got a token

	do    Functions
	token rate.Request                             // for one new key
	known *otter.Cache[rate.Bucket, time.Duration] // buckets that have a row, and until when that is sure, since the start
	start time.Time

	mu     sync.Mutex
	asking map[rate.Bucket]*asking // new keys for which a caller asks for a token now
}

// asking is one caller's request for a token, for which others for the same new key wait.
type asking struct {
	done  chan struct{}
	token *claims.Claim
}

// New is a Stage that lets so many keys of the limiter through, and remembers so many keys that have a row.
func New(limiter string, limit rate.Limit, durability rate.Durability, keys int, do Functions) (*Stage, error) {
	known, err := otter.New(&otter.Options[rate.Bucket, time.Duration]{
		MaximumSize: keys,
		Executor:    func(task func()) { task() }, // no goroutines
	})
	return &Stage{
		do: do, known: known, start: time.Now(), asking: make(map[rate.Bucket]*asking),
		token: rate.Request{
			Limiter: limiter + Suffix, Key: "all", Limit: limit, Tokens: 1, Unit: 1, Durability: durability,
		},
	}, err
}

// Now counts from the stage's start.
func (s *Stage) Now() time.Duration {
	if s == nil {
		return 0
	}
	return time.Since(s.start)
}

// has says that the bucket has a row for sure.
func (s *Stage) has(of rate.Bucket) bool {
	until, known := s.known.GetIfPresent(of)
	return known && s.Now() < until
}

// Learn remembers which buckets have a row that no sweep removes soon. asked is when the call was sent.
func (s *Stage) Learn(requests []rate.Request, decisions []rate.Decision, asked time.Duration) {
	if s == nil {
		return
	}
	for i := range decisions {
		if d := &decisions[i]; d.HasRow && d.ResetAfter > 0 && requests[i].ID == "" { // of an ID that was sent again it is an earlier decision
			s.remember(requests[i].Bucket(), asked)
		}
	}
}

// LetThrough lets the bucket through without a token: a key that was let through before is charged.
func (s *Stage) LetThrough(of rate.Bucket) {
	if s != nil {
		s.remember(of, s.Now())
	}
}

func (s *Stage) remember(of rate.Bucket, from time.Duration) {
	if until, known := s.known.GetIfPresent(of); !known || until < from+rowLasts/2 { // a busy key is not written each time
		s.known.Set(of, from+rowLasts)
	}
}

// Admit returns the claims that make no row, or have a token for each row that they may make. It answers the others.
// Two round trips, combined with those of other callers, come before that: a look, if this process does not know that
// there is a row; and, if there is none, a request for a token, unless these are known to be used up. A request that
// is only observed needs none: it goes with the one that it stands beside.
func (s *Stage) Admit(ctx context.Context, asked []*claims.Claim) []*claims.Claim {
	looks := s.look(ctx, asked)
	if looks == nil {
		return asked
	}
	isNew := make(map[rate.Bucket]bool)
	for of, look := range looks { // a block may outlast the row
		isNew[of] = look.Err == nil && !look.Decisions[0].HasRow && !look.Decisions[0].Blocked && !s.has(of)
	}
	tokens := make(map[rate.Bucket]*claims.Claim) // by the first new key of a claim
	tokensOf := make([]*claims.Claim, len(asked))
	for k, c := range asked {
		var first rate.Bucket
		keys := int64(0)
		for i := range c.Requests {
			r := &c.Requests[i]
			if look := looks[r.Bucket()]; look != nil && look.Err != nil {
				c.Fail(look.Err)
			} else if r.Tokens > 0 && isNew[r.Bucket()] {
				if keys++; keys == 1 {
					first = r.Bucket()
				}
			}
		}
		if keys == 0 || c.Err != nil {
			continue
		}
		if tokens[first] == nil { // else another claim asks for this key
			r := s.token
			r.Tokens, r.Unit = keys, keys
			tokens[first] = &claims.Claim{Requests: []rate.Request{r}, Decisions: []rate.Decision{{RetryAfter: never}}}
		}
		tokensOf[k] = tokens[first]
	}
	s.askTokens(ctx, tokens)

	var admitted []*claims.Claim
	refused := make(map[string]bool)
	for k, c := range asked {
		t := tokensOf[k]
		switch {
		case c.Err != nil:
		case t == nil && c.Beside && slices.ContainsFunc(c.Requests, func(r rate.Request) bool { return refused[r.Key] }): // behind the others
			for i := range c.Decisions {
				c.Decisions[i].Source = rate.FromNewKeys
			}
		case t == nil:
			admitted = append(admitted, c)
		case t.Err != nil:
			c.Fail(t.Err)
		case t.Decisions[0].Granted > 0:
			for i := range c.Requests {
				if of := c.Requests[i].Bucket(); isNew[of] {
					s.LetThrough(of)
				}
			}
			admitted = append(admitted, c)
		default:
			for i := range c.Decisions {
				r, d := &c.Requests[i], &t.Decisions[0]
				c.Decisions[i] = rate.Decision{Allowed: true, At: d.At, Source: rate.FromNewKeys} // the other buckets of a group may have the tokens
				if isNew[r.Bucket()] {
					c.Decisions[i].Allowed, c.Decisions[i].RetryAfter, c.Decisions[i].Contended = false, d.RetryAfter, d.Contended
				}
				refused[r.Key] = true
			}
		}
	}
	return admitted
}

// look looks whether there are rows for the requests that could make one, where that is not known. Nil: there is no
// need.
func (s *Stage) look(ctx context.Context, asked []*claims.Claim) (looks map[rate.Bucket]*claims.Claim) {
	if s == nil {
		return nil
	}
	var all []*claims.Claim
	for _, c := range asked {
		for i := range c.Requests {
			r := &c.Requests[i]
			if r.Tokens == 0 || c.Beside || looks[r.Bucket()] != nil || s.has(r.Bucket()) {
				continue
			}
			if looks == nil {
				looks = make(map[rate.Bucket]*claims.Claim)
			}
			look := &claims.Claim{Requests: []rate.Request{{Limiter: r.Limiter, Key: r.Key, Limit: r.Limit, Unit: 1, Block: r.Block}}, Decisions: make([]rate.Decision, 1)}
			looks[r.Bucket()], all = look, append(all, look)
		}
	}
	if len(all) > 0 {
		s.do.Look(ctx, all)
	}
	return looks
}

// askTokens asks for the tokens of new keys, once for all callers of this process who ask for one key at the same
// time. What this caller asks for itself is answered before it waits for others. Nobody is asked for more tokens than
// a burst.
func (s *Stage) askTokens(ctx context.Context, tokens map[rate.Bucket]*claims.Claim) {
	var own []*claims.Claim
	others := make(map[rate.Bucket]*asking)
	s.mu.Lock()
	for of, t := range tokens {
		one := t.Requests[0].Tokens == 1 // not for several keys of a group
		switch a := s.asking[of]; {
		case one && a != nil:
			others[of] = a
			continue
		case one && s.has(of): // since this caller has looked
			t.Decisions[0].Granted = 1
			continue
		case one:
			s.asking[of] = &asking{make(chan struct{}), t}
		}
		if t.Requests[0].Tokens <= s.token.Limit.Burst {
			own = append(own, t)
		}
	}
	s.mu.Unlock()
	s.do.Take(ctx, own)
	for of, t := range tokens {
		s.mu.Lock()
		if a := s.asking[of]; a != nil && a.token == t {
			if t.Err == nil && t.Decisions[0].Granted > 0 { // who has looked before sees it when he asks
				s.LetThrough(of)
			}
			delete(s.asking, of)
			close(a.done)
		}
		s.mu.Unlock()
	}
	for _, t := range own {
		s.Through.Add(t.Decisions[0].Granted)
	}
	again := make(map[rate.Bucket]*claims.Claim)
	for of, a := range others {
		t := tokens[of]
		select {
		case <-a.done:
		case <-ctx.Done():
			t.Fail(ctx.Err())
			continue
		}
		switch err := a.token.Err; {
		case err == nil:
			t.Decisions[0] = a.token.Decisions[0]
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // that caller has left
			again[of] = t
		default:
			t.Fail(err)
		}
	}
	if len(again) > 0 {
		s.askTokens(ctx, again)
	}
}
