package rate

import (
	"fmt"
	"time"
)

// Block says when a key that is denied again and again is blocked, and for how long. The
// zero Block blocks nobody.
//
// Denials are counted in spans of Within; a span begins with the first denial after the one
// before. After denials in one span block the key. While it is blocked, nothing is counted.
type Block struct {
	// After is how many denials within Within block the key. At least 1.
	After  int64
	Within time.Duration

	// For is how long the first block lasts. Each further block lasts twice as long as the one
	// before, up to Max. A key that has not been blocked for Forget, counted from the end of its
	// last block, begins with For again. Zero Forget: each block lasts For.
	For, Max, Forget time.Duration
}

// MaxBlock is the longest Within, For, Max and Forget of a [Block]: 10 years.
const MaxBlock = 10 * 365 * 24 * time.Hour

// Validate returns a [*BlockError] that names the field, its value and what is allowed, or nil.
func (b Block) Validate() error {
	bad := func(field string, value any, why string, args ...any) error {
		return &BlockError{b, field, fmt.Sprintf("is %v: it must be "+why, append([]any{value}, args...)...)}
	}
	switch {
	case b.After < 1:
		return bad("After", b.After, "at least 1")
	case b.Within <= 0 || b.Within > MaxBlock:
		return bad("Within", b.Within, "positive, and at most %v", MaxBlock)
	case b.For <= 0 || b.For > MaxBlock:
		return bad("For", b.For, "positive, and at most %v", MaxBlock)
	case b.Max < b.For || b.Max > MaxBlock:
		return bad("Max", b.Max, "from For, %v, to %v", b.For, MaxBlock)
	case b.Forget < 0 || b.Forget > MaxBlock:
		return bad("Forget", b.Forget, "from 0 to %v", MaxBlock)
	}
	return nil
}
