package rate

import "fmt"

// Durability says when a grant counts as given.
type Durability int

const (
	// Relaxed: the commit does not wait for the disk. After a crash of the
	// server, at most about 0.6 s of takes (three times wal_writer_delay) are
	// forgotten; a crash of the client forgets nothing.
	Relaxed Durability = iota

	// Durable: before the caller gets the decision, a grant is as durable as any
	// other commit of this server.
	Durable
)

// String is "relaxed" or "durable".
func (d Durability) String() string {
	switch d {
	case Relaxed:
		return "relaxed"
	case Durable:
		return "durable"
	}
	return fmt.Sprintf("Durability(%d)", int(d))
}

// ParseDurability reads what [Durability.String] writes.
func ParseDurability(text string) (Durability, error) {
	for _, d := range []Durability{Relaxed, Durable} {
		if text == d.String() {
			return d, nil
		}
	}
	return Relaxed, fmt.Errorf("pglimit: durability %q: it must be relaxed or durable", text)
}
