// Package count has a counter for many cores at once.
package count

import (
	"math/rand/v2"
	"sync/atomic"
)

// Often counts what happens millions of times a second on all cores. At a single memory
// cell the cores would wait for one another.
type Often [16]struct {
	atomic.Int64
	_ [56]byte // a cache line each
}

// Add adds n.
func (o *Often) Add(n int64) { o[rand.Uint32()%uint32(len(o))].Add(n) }

// Load is how many were added.
func (o *Often) Load() (total int64) {
	for i := range o {
		total += o[i].Load()
	}
	return total
}
