package limits

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Rule is a row of the table: what applies to the keys that it matches. Among the rules of one kind, the one for a key
// takes precedence over the one for the longest prefix, and that over the one for all keys of the limiter.
type Rule struct {
	// Limiter whose keys these are; with the action Places, the Name of the semaphore. Empty: all limiters, only with
	// the action Off.
	Limiter string

	// Key, or Prefix of the keys. Both empty: all keys of the limiter. Off is for all keys only.
	Key, Prefix string

	// Action is Enforce, the zero value; Observe, which counts what it would deny and denies nothing; Allow; Deny; Off;
	// or Places, for a semaphore with Config.FromTable.
	Action rate.Action

	// Limit for Enforce and Observe, as rate.ParseLimit reads it: "100/1m burst 20". With Places, their number: "5",
	// from 1 to 1e15. Empty for the other actions.
	Limit string

	// MaxWait is how long callers of Wait may wait under a limit to Enforce: "30s", or a share of the limit's period,
	// "50%". It can shorten what the service's configuration says, not extend it. Empty: as configured there.
	MaxWait string

	// Note says why, in 1 to 1,000 characters.
	Note string

	// Disabled: as if the rule did not exist.
	Disabled bool

	// Expires is when the rule ends by itself, by the database's clock: see [Table.Now]. To set a rule, it must not be
	// in the past, and at most in 2261. Zero: never. A rule with it is temporary: it covers the permanent rule for the
	// same keys, which applies again when the temporary one ends, or is disabled or deleted.
	Expires time.Time

	// By is who changed it last. When you set a rule, empty means the connected role.
	By string

	// The table sets these; Set and Import ignore them.
	ID      int64
	At      time.Time // of the last change
	Expired bool      // only from [Table.List] and [Table.Explain]
}

// Kind of the rule: "observe", "off", "places", or "live" for the other actions. There is one permanent and one
// temporary rule of each kind for the same keys.
func (r *Rule) Kind() string {
	switch r.Action {
	case rate.Observe, rate.Off, rate.Places:
		return r.Action.String()
	}
	return "live"
}

// order in which the kinds and matches of a limiter are looked up.
func (r *Rule) order() int {
	order := map[string]int{"off": 0, "live": 3, "observe": 6, "places": 9}[r.Kind()]
	switch {
	case r.Key != "":
		return order
	case r.Prefix != "":
		return order + 1
	}
	return order + 2
}

// temporary is 1 for a temporary rule.
func (r *Rule) temporary() int {
	if r.Expires.IsZero() {
		return 0
	}
	return 1
}

// row is a Rule as pglimit.set_limits reads it, and as to_jsonb writes it.
type row struct {
	ID        int64       `json:"id,omitempty"`
	Limiter   *string     `json:"limiter"`
	Key       *string     `json:"key"`
	Prefix    *string     `json:"prefix"`
	Action    rate.Action `json:"action"`
	Limit     *string     `json:"limit_text"`
	MaxWait   *string     `json:"max_wait"`
	Note      *string     `json:"note"`
	Enabled   bool        `json:"enabled"`
	Expires   *time.Time  `json:"expires_at"`
	ChangedBy string      `json:"changed_by,omitempty"`
	ChangedAt time.Time   `json:"changed_at,omitzero"`
}

func newRow(r *Rule) row {
	made := row{
		Limiter: text(r.Limiter), Key: text(r.Key), Prefix: text(r.Prefix), Action: r.Action,
		Limit: text(r.Limit), MaxWait: text(r.MaxWait), Note: text(r.Note), Enabled: !r.Disabled,
	}
	if !r.Expires.IsZero() {
		made.Expires = &r.Expires
	}
	return made
}

func (r *row) rule() Rule {
	made := Rule{
		Limiter: or(r.Limiter), Key: or(r.Key), Prefix: or(r.Prefix), Action: r.Action, Limit: or(r.Limit), MaxWait: or(r.MaxWait),
		Note: or(r.Note), Disabled: !r.Enabled, By: r.ChangedBy, ID: r.ID, At: r.ChangedAt.UTC(),
	}
	if r.Expires != nil {
		made.Expires = r.Expires.UTC()
	}
	return made
}

// null is an argument that is null if it is empty.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// text is null in JSON if it is empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func or(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
