package limits

import (
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Rule is a row of the table: what applies to the keys that it matches. Among the rules of one kind, the one for a key
// takes precedence over the one for the longest prefix, and that over the one for all keys of the limiter.
type Rule struct {
	// Limiter whose keys these are; with ActionPlaces, the Name of the semaphore. Empty: all limiters, only with
	// ActionOff.
	Limiter string `json:"limiter,omitempty"`

	// Key, or Prefix of the keys. Both empty: all keys of the limiter. ActionOff is for all keys only.
	Key    string `json:"key,omitempty"`
	Prefix string `json:"prefix,omitempty"`

	// Action is ActionEnforce, the zero value; ActionObserve, which counts what it would deny and denies nothing;
	// ActionAllow; ActionDeny; ActionOff; or ActionPlaces, for a semaphore with Config.FromTable.
	Action rate.Action `json:"action"`

	// Limit for ActionEnforce and ActionObserve, as rate.ParseLimit reads it: "100/1m burst 20". With ActionPlaces, their
	// number: "5", from 1 to 1e15. Empty for the other actions.
	Limit string `json:"limit_text,omitempty"`

	// MaxWait is how long callers of Wait may wait under ActionEnforce: "30s", or a share of the limit's period,
	// "50%". It can shorten what the service's configuration says, not extend it. Empty: as configured there.
	MaxWait string `json:"max_wait,omitempty"`

	// Note says why, in 1 to 1,000 characters.
	Note string `json:"note,omitempty"`

	// Disabled: as if the rule did not exist.
	Disabled bool `json:"disabled,omitempty"`

	// Expires is when the rule ends by itself, by the database's clock: see [Table.Now]. To set a rule, it must not be
	// in the past, and at most in 2261. Zero: never. A rule with it is temporary: it covers the permanent rule for the
	// same keys, which applies again when the temporary one ends, or is disabled or deleted.
	Expires time.Time `json:"expires_at,omitzero"`

	// By is who changed it last. When you set a rule, empty means the connected role.
	By string `json:"changed_by,omitempty"`

	// The table sets these; Set and Import ignore them.
	ID      int64     `json:"id,omitempty"`
	At      time.Time `json:"changed_at,omitzero"` // of the last change
	Expired bool      `json:"-"`                   // only from [Table.List] and [Table.Explain]
}

// Kind of the rule: "observe", "off", "places", or "live" for the other actions. There is one permanent and one
// temporary rule of each kind for the same keys.
func (r *Rule) Kind() string {
	switch r.Action {
	case rate.ActionObserve, rate.ActionOff, rate.ActionPlaces:
		return r.Action.String()
	}
	return "live"
}

// ParseExpiry reads when a rule is to end, for [Rule].Expires: a time from now such as 90m, 24h or 7day, or a moment as in
// RFC 3339. now should be that of [Table.Now]. The error begins with "is".
func ParseExpiry(text string, now time.Time) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		in, err := rate.ParseLimit("1/" + text) // a period is written in the same way
		if err != nil || in != rate.Every(in.Period) {
			return at, fmt.Errorf("is %q: it must be a time from now such as 90m, 24h or 7day, or a moment such as "+
				"2026-11-30T18:00:00Z", text)
		}
		at = now.Add(in.Period)
	}
	if !at.After(now) {
		return at, fmt.Errorf("is %s: that has passed, it is %s", text, now.Format(time.RFC3339))
	}
	return at, nil
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
	*Rule
	Enabled  bool `json:"enabled"`
	Disabled bool `json:"disabled,omitempty"` // never: it hides that of Rule, which the table does not have
}

func (r *row) rule() *Rule {
	if r == nil {
		return nil
	}
	r.Rule.Disabled, r.Expires, r.At = !r.Enabled, r.Expires.UTC(), r.At.UTC()
	return r.Rule
}

// null is an argument that is null if it is empty.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}
