package combine

import (
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxPieces bounds the calls that replace a call that took nothing. If there are more buckets,
// a piece has several, and is divided again if it fails.
const maxPieces = 32

// askApart asks about pieces of the batch, in the end about each bucket alone. Only the callers
// of the bucket to blame get an error.
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

// severalBuckets says whether the batch asks for more than one bucket.
func (b *batch) severalBuckets() bool {
	return slices.ContainsFunc(b.requests, func(r rate.Request) bool { return r.Bucket() != b.requests[0].Bucket() })
}

// apart divides the waiters among batches of the same flight. The waiters of one bucket stay
// together, in order.
func (b *batch) apart() []batch {
	places := make(map[rate.Bucket]int)
	for _, w := range b.waiters {
		if _, known := places[w.Request.Bucket()]; !known {
			places[w.Request.Bucket()] = len(places)
		}
	}
	pieces := make([]batch, min(len(places), maxPieces))
	for i := range pieces {
		pieces[i].flight = b.flight
	}
	for _, w := range b.waiters {
		piece := &pieces[places[w.Request.Bucket()]*len(pieces)/len(places)]
		piece.waiters = append(piece.waiters, w)
	}
	return pieces
}
