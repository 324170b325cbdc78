package pglimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// NewKeys bounds how many keys without a row get one, for limiters whose keys a client can make up: see [Config]. It is off
// unless it has a Limit.
type NewKeys struct {
	// Limit of new keys, all keys of the Limiter and all processes together: 100 a second makes at most so many rows, after
	// a burst. Its bucket is that of the constant key "all" of a limiter named Name + " (new keys)", by the same strategy.
	// All Limiters of one Name should have the same. Zero: there is no bound.
	Limit Limit

	// OnRefused answers a request for a new key that Limit refuses. err is [ErrTooManyNewKeys]. [FailLocal] decides by this
	// instance's share of the request's limit, and makes no row; [FailOpen] grants, and nothing is charged. Nil: the request is
	// denied, and RetryAfter says when the next new key can come. An error is returned to the caller.
	//
	// For a group of DoAll it is called as OnError is. Decision.Source is FromNewKeys, whatever it answers.
	OnRefused func(ctx context.Context, request Request, err error) (Decision, error)

	// Keys is how many keys this process remembers to have a row. Any other key costs a round trip more, to look. Only
	// keys with a row are remembered, so a flood of others displaces none. Each takes about 100 bytes plus the key. Zero: 65,536.
	Keys int
}

// ErrTooManyNewKeys: a request is for a key without a row, and [Config].NewKeys lets no more of these through now.
var ErrTooManyNewKeys = errors.New("pglimit: too many new keys: Config.NewKeys lets no more of them through now")

const (
	// newKeysSuffix is behind the name of a limiter whose new keys are counted.
	newKeysSuffix = " (new keys)"

	// rowLasts is how long a bucket that is not full is known to have a row. A sweep removes rows that have been full for a
	// minute, so this leaves ten seconds to a request that has passed. (A row may go earlier: by a Reset, a step of the clock,
	// or a GiveBack of exclusion_range. Then it is made again without a token, but takes the place of one that had it.)
	rowLasts = 50 * time.Second
)

func (c Config) validateNewKeys(strategy Strategy) error {
	n := &c.NewKeys
	if n.Limit == (Limit{}) {
		if n.OnRefused != nil || n.Keys != 0 {
			return &ConfigError{"NewKeys.Limit", errors.New("is missing: set it, such as PerSecond(100), or leave NewKeys out")}
		}
		return nil
	}
	if err := checkLimit(strategy, n.Limit); err != nil {
		return &ConfigError{"NewKeys.Limit", err}
	}
	if n.Keys < 0 {
		return &ConfigError{"NewKeys.Keys", fmt.Errorf("is %d: it must not be negative; 0 means %d", n.Keys, defaultDenialKeys)}
	}
	if most := MaxLimiterBytes - len(newKeysSuffix); len(c.Name) > most {
		return &ConfigError{"Name", fmt.Errorf("has %d bytes: with Config.NewKeys at most %d are allowed, because new keys are counted as %q", len(c.Name), most, "name"+newKeysSuffix)}
	}
	empty := Decision{Limit: n.Limit, RetryAfter: time.Second, ResetAfter: time.Second}
	if !strategy.Rule().Denies(empty, 1, 1, 0) { // each refusal would be a write, and keep the next new key out
		return &ConfigError{"NewKeys.Limit", fmt.Errorf("needs a strategy that does not count denials, and %s does: leave NewKeys out, or use strategies.TokenBucket{}", strategy.Name())}
	}
	return nil
}

// newKeys is the stage that asks for a token for each key without a row. If nil, it is switched off.
type newKeys struct {
	token   Request                                  // for one new key
	known   *otter.Cache[rate.Bucket, time.Duration] // buckets that have a row, and until when that is sure, since the start
	looks   *combine.Combiner                        // sends looks, apart from what takes: a flood's are many, and lock nothing. Nil: they go out as other requests do
	start   time.Time
	through atomic.Int64 // keys that got a token

	mu     sync.Mutex
	asking map[rate.Bucket]*asking // new keys for which a caller asks for a token now
}

// asking is one caller's request for a token, for which others for the same new key wait.
type asking struct {
	done  chan struct{}
	token *unit
}

func newNewKeys(c *Config) (*newKeys, error) {
	known, err := otter.New(&otter.Options[rate.Bucket, time.Duration]{
		MaximumSize: c.NewKeys.Keys,
		Executor:    func(task func()) { task() }, // no goroutines
	})
	token := Request{Limiter: c.Name + newKeysSuffix, Key: "all", Limit: c.NewKeys.Limit, Tokens: 1, Unit: 1, Durability: c.Durability}
	return &newKeys{token: token, known: known, start: time.Now(), asking: make(map[rate.Bucket]*asking)}, err
}

func (n *newKeys) close(ctx context.Context) error {
	if n == nil {
		return nil
	}
	return n.looks.Close(ctx)
}

// now counts from the stage's start.
func (n *newKeys) now() time.Duration {
	if n == nil {
		return 0
	}
	return time.Since(n.start)
}

// has says that the bucket has a row for sure.
func (n *newKeys) has(of rate.Bucket) bool {
	until, known := n.known.GetIfPresent(of)
	return known && n.now() < until
}

// learn remembers which buckets have a row that no sweep removes soon. asked is when the call was sent.
func (n *newKeys) learn(requests []Request, decisions []Decision, asked time.Duration) {
	if n == nil {
		return
	}
	for i := range decisions {
		if d := &decisions[i]; d.HasRow && d.ResetAfter > 0 && requests[i].ID == "" { // of an ID that was sent again it is an earlier decision
			n.remember(requests[i].Bucket(), asked)
		}
	}
}

// letThrough lets the bucket through without a token: a key that was let through before is charged.
func (n *newKeys) letThrough(of rate.Bucket) {
	if n != nil {
		n.remember(of, n.now())
	}
}

func (n *newKeys) remember(of rate.Bucket, from time.Duration) {
	if until, known := n.known.GetIfPresent(of); !known || until < from+rowLasts/2 { // a busy key is not written each time
		n.known.Set(of, from+rowLasts)
	}
}

// admitted returns the units that make no row, or have a token for each row that they may make. It answers the others. Two
// round trips, combined with those of other callers, come before that: a look, if this process does not know that there is a row;
// and, if there is none, a request for a token, unless these are known to be used up. A request that is only observed needs
// none: it goes with the one that it stands beside.
func (l *Limiter) admitted(ctx context.Context, units []*unit) []*unit {
	looks := l.looks(ctx, units)
	if looks == nil {
		return units
	}
	isNew := make(map[rate.Bucket]bool)
	for of, look := range looks { // a block may outlast the row
		isNew[of] = look.Err == nil && !look.Decisions[0].HasRow && !look.Decisions[0].Blocked && !l.newKeys.has(of)
	}
	tokens := make(map[rate.Bucket]*unit) // by the first new key of a unit
	tokensOf := make([]*unit, len(units))
	for k, u := range units {
		var first rate.Bucket
		keys := int64(0)
		for i := range u.Requests {
			r := &u.Requests[i]
			if look := looks[r.Bucket()]; look != nil && look.Err != nil {
				u.Fail(look.Err)
			} else if r.Tokens > 0 && isNew[r.Bucket()] {
				if keys++; keys == 1 {
					first = r.Bucket()
				}
			}
		}
		if keys == 0 || u.Err != nil {
			continue
		}
		if tokens[first] == nil { // else another unit asks for this key
			r := l.newKeys.token
			r.Tokens, r.Unit = keys, keys
			tokens[first] = &unit{Requests: []Request{r}, Decisions: []Decision{{RetryAfter: foreverDenied}}}
		}
		tokensOf[k] = tokens[first]
	}
	l.askTokens(ctx, tokens)

	var admitted []*unit
	refused := make(map[string]bool)
	for k, u := range units {
		t := tokensOf[k]
		switch {
		case u.Err != nil:
		case t == nil && isObserved(u) && slices.ContainsFunc(u.Requests, func(r Request) bool { return refused[r.Key] }): // behind the others
			for i := range u.Decisions {
				u.Decisions[i].Source = FromNewKeys
			}
		case t == nil:
			admitted = append(admitted, u)
		case t.Err != nil:
			u.Fail(t.Err)
		case t.Decisions[0].Granted > 0:
			for i := range u.Requests {
				if of := u.Requests[i].Bucket(); isNew[of] {
					l.newKeys.letThrough(of)
				}
			}
			admitted = append(admitted, u)
		default:
			for i := range u.Decisions {
				r, d := &u.Requests[i], &t.Decisions[0]
				u.Decisions[i] = Decision{Allowed: true, At: d.At, Source: FromNewKeys} // the other buckets of a group may have the tokens
				if isNew[r.Bucket()] {
					u.Decisions[i].Allowed, u.Decisions[i].RetryAfter, u.Decisions[i].Contended = false, d.RetryAfter, d.Contended
				}
				refused[r.Key] = true
			}
		}
	}
	return admitted
}

// looks looks whether there are rows for the units' requests that could make one, where that is not known. Nil: there is no need.
func (l *Limiter) looks(ctx context.Context, units []*unit) (looks map[rate.Bucket]*unit) {
	if l.newKeys == nil {
		return nil
	}
	var all []*unit
	for _, u := range units {
		for i := range u.Requests {
			r := &u.Requests[i]
			if r.Tokens == 0 || isObserved(u) || looks[r.Bucket()] != nil || l.newKeys.has(r.Bucket()) {
				continue
			}
			if looks == nil {
				looks = make(map[rate.Bucket]*unit)
			}
			look := &unit{Requests: []Request{{Limiter: r.Limiter, Key: r.Key, Limit: r.Limit, Unit: 1, Block: r.Block}}, Decisions: make([]Decision, 1)}
			looks[r.Bucket()], all = look, append(all, look)
		}
	}
	if l.newKeys.looks == nil {
		l.obtain(ctx, all)
	} else if len(all) > 0 {
		l.newKeys.looks.Decide(ctx, all)
	}
	return looks
}

// askTokens asks for the tokens of new keys, once for all callers of this process who ask for one key at the same time. What this
// caller asks for itself is answered before it waits for others. Nobody is asked for more tokens than a burst.
func (l *Limiter) askTokens(ctx context.Context, tokens map[rate.Bucket]*unit) {
	n := l.newKeys
	var own []*unit
	others := make(map[rate.Bucket]*asking)
	n.mu.Lock()
	for of, t := range tokens {
		one := t.Requests[0].Tokens == 1 // not for several keys of a group
		switch a := n.asking[of]; {
		case one && a != nil:
			others[of] = a
			continue
		case one && n.has(of): // since this caller has looked
			t.Decisions[0].Granted = 1
			continue
		case one:
			n.asking[of] = &asking{make(chan struct{}), t}
		}
		if t.Requests[0].Tokens <= n.token.Limit.Burst {
			own = append(own, t)
		}
	}
	n.mu.Unlock()
	l.obtain(ctx, l.unknown(own))
	for of, t := range tokens {
		n.mu.Lock()
		if a := n.asking[of]; a != nil && a.token == t {
			if t.Err == nil && t.Decisions[0].Granted > 0 { // who has looked before sees it when he asks
				n.letThrough(of)
			}
			delete(n.asking, of)
			close(a.done)
		}
		n.mu.Unlock()
	}
	for _, t := range own {
		n.through.Add(t.Decisions[0].Granted)
	}
	again := make(map[rate.Bucket]*unit)
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
		l.askTokens(ctx, again)
	}
}
