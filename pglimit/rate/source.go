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

type source struct {
	name string
	free bool // nothing was charged
	none bool // no limit has decided
}

// sources say what else depends on a source, in the order of the constants.
var sources = [len(Sources)]source{
	FromDatabase: {name: "database"},
	FromMemory:   {name: "memory"},
	FromLease:    {name: "lease"},
	FromFallback: {name: "fallback", free: true},
	FromRule:     {name: "rule", free: true, none: true},
	FromAdjust:   {name: "adjust", none: true},
	FromNewKeys:  {name: "new_keys", free: true, none: true},
}

// IsFree says that a grant charged nothing, so that there is nothing to give back.
func (s Source) IsFree() bool { return s.of().free }

// HasLimit says that a limit has decided, which can be shown.
func (s Source) HasLimit() bool { return !s.of().none }

// String is "database", "memory", "lease", "fallback", "rule", "adjust" or "new_keys".
func (s Source) String() string { return s.of().name }

func (s Source) of() source {
	if s < 0 || int(s) >= len(sources) {
		return source{name: fmt.Sprintf("Source(%d)", int(s))}
	}
	return sources[s]
}
