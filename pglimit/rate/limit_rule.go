package rate

import (
	"fmt"
	"time"
)

// LimitRule is a row of the table pglimit.limits: what holds for the keys that it matches. Of the rules of a limiter,
// the one for a key beats the one for the longest prefix, and that the one for all keys; of two for the same keys the
// one that expires holds until then.
type LimitRule struct {
	ID      int64  // of the row
	Limiter string // empty: all; only with ActionOff

	// Key or Prefix of the keys that it matches. Both empty: all keys of the limiter.
	Key, Prefix string

	Action Action
	Limit  Limit // for ActionEnforce and ActionObserve

	// MaxWait is how long callers of Wait may wait; zero: as the Limiter says.
	MaxWait time.Duration

	Note    string    // why
	Expires time.Time // by the database's clock; zero: never

	// Unreadable is why the row cannot be read: each request for which it holds gets a [RuleError]. Empty: it can.
	Unreadable string
}

// Action of a [LimitRule].
type Action int

// What a rule does with requests.
const (
	ActionEnforce Action = iota // grants what its Limit grants
	ActionObserve               // counts what its Limit would deny, beside the rule that holds, and denies nothing
	ActionAllow                 // grants all, without asking Postgres
	ActionDeny                  // grants nothing, without asking Postgres
	ActionOff                   // switches the limiter off: grants all, whatever other rules say
	ActionPlaces                // says how many places a semaphore has: no limiter heeds it
)

// Actions are those of limiters, in order: all but ActionPlaces.
var Actions = [...]Action{ActionEnforce, ActionObserve, ActionAllow, ActionDeny, ActionOff}

var actionNames = [...]string{"enforce", "observe", "allow", "deny", "off", "places"}

// String is "enforce", "observe", "allow", "deny", "off" or "places".
func (a Action) String() string {
	if a < 0 || int(a) >= len(actionNames) {
		return fmt.Sprintf("Action(%d)", int(a))
	}
	return actionNames[a]
}

// ParseAction reads what String writes.
func ParseAction(text string) (Action, error) {
	for i, name := range actionNames {
		if text == name {
			return Action(i), nil
		}
	}
	return 0, fmt.Errorf("the action is %q: it must be one of %q", text, actionNames)
}

// MarshalText writes what String does.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what [ParseAction] does.
func (a *Action) UnmarshalText(text []byte) (err error) {
	*a, err = ParseAction(string(text))
	return err
}

// MatchesAll says whether the rule is for all keys of its limiter.
func (r *LimitRule) MatchesAll() bool { return r.Key == "" && r.Prefix == "" }

// Equal says whether the other rule is the same in every field.
func (r *LimitRule) Equal(other *LimitRule) bool {
	a, b := *r, *other
	a.Expires, b.Expires = time.Time{}, time.Time{}
	return a == b && r.Expires.Equal(other.Expires)
}
