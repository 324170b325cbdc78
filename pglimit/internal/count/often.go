// Package count has what many cores count at once.
package count

import (
	"math/rand/v2"
	"sync/atomic"
)

// Often counts what happens millions of times a second on all cores: on one memory
// cell they would wait for one another.
type Often [16]struct {
	atomic.Int64
	_ [56]byte // a cache line each
}

// Add one.
func (o *Often) Add() { o[rand.Uint32()%uint32(len(o))].Add(1) }

// Load is how many were added.
func (o *Often) Load() (total int64) {
	for i := range o {
		total += o[i].Load()
	}
	return total
}
