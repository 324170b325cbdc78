package pglimit

import (
	"reflect"
	"runtime"
	"sync"
	"weak"

	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// memories are the memories of denials of this process's Limiters that share their buckets, because they
// have the same pool and the same strategy: a Limiter may remember any bucket, as one of a group.
var memories = struct {
	sync.Mutex
	of map[shared]map[weak.Pointer[denials.Memory]]bool
}{of: make(map[shared]map[weak.Pointer[denials.Memory]]bool)}

type shared struct {
	pool     any
	strategy string
}

// share the Limiter's memory of denials with the others of its pool.
func (l *Limiter) share(pool any) {
	if v := reflect.ValueOf(pool); l.denials == nil || !v.Comparable() || v.IsZero() {
		return
	}
	l.shared = shared{pool, l.strategy.Name()}
	own := weak.Make(l.denials)
	memories.Lock()
	defer memories.Unlock()
	if memories.of[l.shared] == nil {
		memories.of[l.shared] = make(map[weak.Pointer[denials.Memory]]bool)
	}
	memories.of[l.shared][own] = true
	runtime.AddCleanup(l.denials, func(of shared) {
		memories.Lock()
		defer memories.Unlock()
		if delete(memories.of[of], own); len(memories.of[of]) == 0 {
			delete(memories.of, of)
		}
	}, l.shared)
}

// forget what is remembered of a bucket that has got more tokens.
func (l *Limiter) forget(bucket rate.Bucket) {
	l.eachMemory(func(m *denials.Memory) { m.Forget(bucket) })
}

func (l *Limiter) eachMemory(do func(*denials.Memory)) {
	do(l.denials)
	if l.shared.pool == nil {
		return
	}
	memories.Lock()
	defer memories.Unlock()
	for of := range memories.of[l.shared] {
		if m := of.Value(); m != nil && m != l.denials {
			do(m)
		}
	}
}
