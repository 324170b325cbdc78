// Package registry finds what other Limiters of this process have.
package registry

import (
	"reflect"
	"runtime"
	"sync"
	"weak"
)

// Registry has the M of all Limiters, by the buckets that they share: those of a pool and a strategy. It
// keeps nobody's M from being collected. The zero Registry is empty.
type Registry[M any] struct {
	mu sync.Mutex
	of map[buckets]map[weak.Pointer[M]]bool
}

type buckets struct {
	pool     any
	strategy string
}

// Add own, unless it is nil. It returns a function that calls do for own, and for all others that
// share its buckets.
func (r *Registry[M]) Add(pool any, strategy string, own *M) (each func(do func(*M))) {
	if own == nil {
		return func(func(*M)) {}
	}
	if v := reflect.ValueOf(pool); !v.Comparable() || v.IsZero() {
		return func(do func(*M)) { do(own) }
	}
	of, weakly := buckets{pool, strategy}, weak.Make(own)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = make(map[buckets]map[weak.Pointer[M]]bool)
	}
	if r.of[of] == nil {
		r.of[of] = make(map[weak.Pointer[M]]bool)
	}
	r.of[of][weakly] = true
	runtime.AddCleanup(own, func(weakly weak.Pointer[M]) { r.remove(of, weakly) }, weakly)
	return func(do func(*M)) { r.each(of, do) }
}

func (r *Registry[M]) remove(of buckets, weakly weak.Pointer[M]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.of[of], weakly); len(r.of[of]) == 0 {
		delete(r.of, of)
	}
}

func (r *Registry[M]) each(of buckets, do func(*M)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for weakly := range r.of[of] {
		if m := weakly.Value(); m != nil {
			do(m)
		}
	}
}
