package semaphore

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Config of a [Semaphore]. Name is required, and Places or FromTable. The zero value of
// every other field is its default.
type Config struct {
	// Name of what is limited. Semaphores with the same Name share their keys, in all processes. At most
	// rate.MaxLimiterBytes long.
	Name string

	// Places is the number of places of each key, at most 1e15. At most 1,000 permits of a key are held at once.
	Places int64

	// FromTable takes the number of places from the rules of the table pglimit.limits with the action places ("pglimit
	// limits set jobs --action places --limit 5"). The statement that acquires reads it, so a change applies from the
	// next call on. It needs the right to read that table. Places applies to keys without a rule; if it is zero, they
	// get ErrNotSet.
	FromTable bool

	// TTL is how long the place of a process that has crashed stays taken. A permit that
	// cannot be renewed for that time is lost. From 100ms to 24h. Zero: 30s.
	TTL time.Duration

	// Timeout of one call to Postgres. Zero: a second, or the TTL if that is shorter.
	Timeout time.Duration

	// MaxWait is how long Acquire waits for a place before it returns ErrFull. Zero: as long as the context allows.
	MaxWait time.Duration

	// Poll is the average time between two questions of the first caller in line, in each process and for each key. The
	// first few come sooner, and one comes at once when a permit is released in the same process. Zero: 250ms.
	Poll time.Duration

	// Holder is the name shown in Peek and in the view pglimit.holders. At most 200 bytes. Zero: the host's name and
	// the number of this process.
	Holder string
}

// Bounds of Config. Those of the TTL are also in the functions of Postgres.
const (
	minTTL, maxTTL = 100 * time.Millisecond, 24 * time.Hour
	maxPlaces      = 1e15
	maxHolderBytes = 200
)

func (c Config) withDefaults() Config {
	c.TTL = cmp.Or(c.TTL, 30*time.Second)
	c.Timeout = cmp.Or(c.Timeout, min(time.Second, c.TTL))
	c.Poll = cmp.Or(c.Poll, 250*time.Millisecond)
	if c.Holder == "" {
		host, _ := os.Hostname()
		c.Holder = fmt.Sprintf("%.100s/%d", host, os.Getpid())
	}
	return c
}

func (c Config) validate() error {
	if err := rate.CheckLimiter(c.Name); err != nil {
		return fmt.Errorf("semaphore: Config.Name: %w", err)
	}
	switch {
	case c.Places < 0 || c.Places > maxPlaces || c.Places == 0 && !c.FromTable:
		return fmt.Errorf("semaphore: Config.Places is %d: it must be at least 1, and at most 1e15; 0 only with FromTable", c.Places)
	case c.TTL < minTTL || c.TTL > maxTTL:
		return fmt.Errorf("semaphore: Config.TTL is %v: it must be from 100ms to 24h, or 0 for 30s", c.TTL)
	case c.Timeout < 0 || c.Timeout > c.TTL:
		return fmt.Errorf("semaphore: Config.Timeout is %v: it must not be negative, nor longer than the TTL, %v; 0 means 1s", c.Timeout, c.TTL)
	case c.MaxWait < 0:
		return fmt.Errorf("semaphore: Config.MaxWait is %v: it must not be negative; 0 means as long as the context allows", c.MaxWait)
	case c.Poll < time.Millisecond:
		return fmt.Errorf("semaphore: Config.Poll is %v: it must be at least 1ms, or 0 for 250ms", c.Poll)
	case len(c.Holder) > maxHolderBytes:
		return fmt.Errorf("semaphore: Config.Holder has %d bytes: at most %d are allowed", len(c.Holder), maxHolderBytes)
	}
	if err := rate.CheckKey(c.Holder); err != nil {
		return fmt.Errorf("semaphore: Config.Holder: %w", err)
	}
	return nil
}
