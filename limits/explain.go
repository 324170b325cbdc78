package limits

import (
	"context"
	"encoding/json"
	"time"
)

// State says whether a rule applies to a key.
type State string

// The states of a rule.
const (
	Holds     State = "holds"
	Overruled State = "overruled" // by a rule that applies
	Disabled  State = "disabled"
	Expired   State = "expired"
	Fails     State = "fails" // it would apply, but cannot be read or enforced: each request gets an error
)

// Explanation of one rule, for a key.
type Explanation struct {
	Rule
	State State `json:"state"`

	// Why a rule fails.
	Why string `json:"why,omitempty"`

	// Bucket of the key, under the rule's limit. Nil unless the rule holds and has a limit.
	Bucket *Bucket `json:"bucket,omitempty"`

	// Held is how many places of the key are held now, if the rule holds and has ActionPlaces. It can exceed the
	// rule's number: nobody loses a permit when that is lowered.
	Held int64 `json:"held,omitempty"`
}

// Bucket of the strategy TokenBucket. Buckets of other strategies are not shown.
type Bucket struct {
	Remaining  int64         `json:"remaining"`      // whole tokens
	RetryAfter time.Duration `json:"retry_after_ns"` // until a token is there and the key is not blocked; zero: now
	ResetAfter time.Duration `json:"reset_after_ns"` // until the bucket is full
}

// Explain returns the rules for a key, in the order in which they are looked up, and the state of each. It counts
// nothing. At most one rule of each kind holds, and no live rule where one is off. If no live or off rule holds, the
// limit of the service's configuration applies. A request with its own limit ignores a limit for all keys.
func (t *Table) Explain(ctx context.Context, limiter, key string) ([]Explanation, error) {
	var answer string
	err := t.row(ctx, `select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('state', e.state, 'rule', e.rule, 'remaining', e.remaining,
			'retry', extract(epoch from e.retry_after), 'reset', extract(epoch from e.reset_after), 'held', coalesce(e.held, 0), 'why', coalesce(e.why, ''))), '[]')::text
		from pglimit.explain_limit($1::text, $2::text) e`, []any{limiter, key}, &answer)
	if err != nil {
		return nil, err
	}
	var rows []struct {
		State     State   `json:"state"`
		Rule      row     `json:"rule"`
		Remaining *int64  `json:"remaining"`
		Retry     float64 `json:"retry"` // seconds, with microseconds
		Reset     float64 `json:"reset"`
		Held      int64   `json:"held"`
		Why       string  `json:"why"`
	}
	if err := json.Unmarshal([]byte(answer), &rows); err != nil {
		return nil, err
	}
	all := make([]Explanation, len(rows))
	for i, r := range rows {
		all[i] = Explanation{Rule: *r.Rule.rule(), State: r.State, Held: r.Held, Why: r.Why}
		all[i].Expired = r.State == Expired
		if r.Remaining != nil {
			all[i].Bucket = &Bucket{*r.Remaining, seconds(r.Retry), seconds(r.Reset)}
		}
	}
	return all, nil
}

// seconds are at most 200 years, which a float64 holds to the microsecond.
func seconds(s float64) time.Duration { return time.Duration(s*1e6+0.5) * time.Microsecond }
