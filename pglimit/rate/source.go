package rate

import "fmt"

// Source of a [Decision].
type Source int

// Where a decision may come from.
const (
	FromDatabase Source = iota // Postgres was asked
	FromMemory                 // the memory of denials
	FromLease                  // tokens that this process had leased
	FromFallback               // Config.OnError, because no decision of Postgres was known
	FromRule                   // a rule of the table pglimit.limits that allows, denies or switches off
	FromAdjust                 // Config.Adjust left no share of the limit that could grant the request
	FromNewKeys                // Config.NewKeys let no more new keys through
)

// Sources are all sources, in order.
var Sources = [...]Source{FromDatabase, FromMemory, FromLease, FromFallback, FromRule, FromAdjust, FromNewKeys}

// String is "database", "memory", "lease", "fallback", "rule", "adjust" or "new_keys".
func (s Source) String() string {
	if s < 0 || int(s) >= len(Sources) {
		return fmt.Sprintf("Source(%d)", int(s))
	}
	return [...]string{"database", "memory", "lease", "fallback", "rule", "adjust", "new_keys"}[s]
}
