package combine

import (
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxPieces bounds the calls that replace a call that took nothing. If there are more buckets,
// a piece has several, and is divided again if it fails.
const maxPieces = 32

// askApart asks about pieces of the batch, in the end about each bucket or group alone. Only the
// callers of what is to blame get an error.
func (l *lane) askApart(b *batch) error {
	pieces := b.apart()
	for i := range pieces {
		if err := l.ask(&pieces[i]); err != nil {
			for rest := i + 1; rest < len(pieces); rest++ {
				pieces[rest].fail(err) // without asking once more
			}
			return err
		}
	}
	return nil
}

// isOne says whether the batch asks for one bucket or one group only.
func (b *batch) isOne() bool {
	if isGroup(b.waiters[0].Request) {
		return len(b.waiters) == 1
	}
	return !slices.ContainsFunc(b.requests, func(r rate.Request) bool { return r.Bucket() != b.requests[0].Bucket() })
}

// apart divides the waiters among batches of the same call. The waiters of one bucket stay
// together, in order. Each group is by itself.
func (b *batch) apart() []batch {
	places := make(map[rate.Bucket]int)
	of, n := make([]int, len(b.waiters)), 0 // the place of each waiter
	for i, w := range b.waiters {
		place, known := places[w.Request[0].Bucket()]
		if !known || isGroup(w.Request) {
			place = n
			places[w.Request[0].Bucket()] = n
			n++
		}
		of[i] = place
	}
	pieces := make([]batch, min(n, maxPieces))
	for i := range pieces {
		pieces[i].call, pieces[i].patient, pieces[i].single = b.call, b.patient, b.single
	}
	for i, w := range b.waiters {
		piece := &pieces[of[i]*len(pieces)/n]
		piece.waiters = append(piece.waiters, w)
	}
	return pieces
}
