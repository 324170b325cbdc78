package rate

import (
	"fmt"
	"time"
)

// Validate returns a [*RequestError] that names the field, its value and what is allowed, or a
// [*LimitError], or nil. Every [Leaser] validates what it gets.
func (r LeaseRequest) Validate() error {
	look := Request{Limiter: r.Limiter, Key: r.Key, Limit: r.Limit, Durability: r.Durability}
	if err := look.Validate(); err != nil {
		return err
	}
	switch {
	case r.Limit.Calendar != "":
		return &LimitError{r.Limit, "Calendar", fmt.Sprintf("is %q: nothing of a window of the calendar can be leased", r.Limit.Calendar)}
	case r.Tokens < 0:
		return &RequestError{"Tokens", fmt.Sprintf("is %d: it must not be negative", r.Tokens)}
	case r.Share < 1:
		return &RequestError{"Share", fmt.Sprintf("is %d: it must be at least 1", r.Share)}
	case r.TTL < time.Millisecond || r.TTL > time.Hour:
		return &RequestError{"TTL", fmt.Sprintf("is %v: it must be from 1ms to 1h", r.TTL)}
	case r.Spent < 0 || r.Spent > r.Settle.Tokens:
		return &RequestError{"Spent", fmt.Sprintf("is %d: it must be from 0 to the %d tokens of the lease", r.Spent, r.Settle.Tokens)}
	}
	return nil
}
