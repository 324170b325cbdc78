package registry_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/registry"
)

type memory struct {
	told int
	_    [64]byte // not allocated together with something else
}

func TestWhoSharesBucketsIsTold(t *testing.T) {
	t.Parallel()
	var r registry.Registry[memory]
	one, other := new(int), new(int)
	var a, b, elsewhere, another memory
	each := r.Add(one, "s", &a)
	r.Add(one, "s", &b)
	r.Add(other, "s", &elsewhere)
	r.Add(one, "t", &another)
	tell := func(m *memory) { m.told++ }
	each(tell)
	if a.told != 1 || b.told != 1 || elsewhere.told != 0 || another.told != 0 {
		t.Errorf("%d, %d, %d, %d", a.told, b.told, elsewhere.told, another.told)
	}
	r.Add(struct{ any }{}, "s", &a)(tell) // a pool that cannot be told from others
	r.Add(one, "s", nil)(tell)
	if a.told != 2 || b.told != 1 {
		t.Errorf("%d, %d", a.told, b.told)
	}
}

// A Limiter that is dropped without Close is collected, and what the registry knows of it.
func TestNobodyIsKept(t *testing.T) {
	t.Parallel()
	var r registry.Registry[memory]
	pool, own := new(int), new(memory)
	each := r.Add(pool, "s", own)
	for range 100 {
		r.Add(pool, "s", new(memory))
	}
	for began := time.Now(); ; runtime.Gosched() {
		runtime.GC()
		n := 0
		each(func(*memory) { n++ })
		if n == 1 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%d are left", n)
		}
	}
	runtime.KeepAlive(own)
}
