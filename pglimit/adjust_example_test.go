package pglimit_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// shedding is a share that falls by a tenth each time the load is above high, and grows by a fiftieth each time it is
// below low. In between it stays, so that it does not swing. Some callers always get through: they show when it is over.
type shedding struct{ share, high, low float64 }

func (s *shedding) next(load float64) float64 {
	switch {
	case load > s.high:
		s.share = max(0.1, s.share*0.9)
	case load < s.low:
		s.share = min(1, s.share+0.02)
	}
	return s.share
}

// byPressure sheds while processes wait for the CPU for more than 40 % of the time, and until it is less than 20 %: file is
// /proc/pressure/cpu (or memory, or io) of Linux.
func byPressure(file string) func() float64 {
	s := shedding{share: 1, high: 40, low: 20}
	return func() float64 {
		text, err := os.ReadFile(file)
		var stalled float64 // percent of the last 10 s
		if err == nil {
			_, err = fmt.Sscanf(string(text), "some avg10=%f", &stalled)
		}
		if err != nil {
			return math.NaN() // changes nothing, and is counted
		}
		return s.next(stalled)
	}
}

func ExampleConfig_adjustPressure() {
	dir, _ := os.MkdirTemp("", "pressure")
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "cpu")
	shed := byPressure(file) // in a service: pglimit.Config{Adjust: byPressure("/proc/pressure/cpu"), …}
	for _, pressure := range []string{"5.00", "60.00", "60.00", "30.00", "10.00"} {
		_ = os.WriteFile(file, []byte("some avg10="+pressure+" avg60=0.00 avg300=0.00 total=7\n"), 0o600)
		fmt.Printf("%s: %.2f\n", pressure, shed())
	}
	// Output:
	// 5.00: 1.00
	// 60.00: 0.90
	// 60.00: 0.81
	// 30.00: 0.81
	// 10.00: 0.83
}

// latency sheds while the service's own p99 is above 250 ms, and until it is below 150 ms.
type latency struct {
	mu   sync.Mutex
	took []time.Duration // of the requests since the last look
	shed shedding
}

// Observe is called with the time that each request took.
func (l *latency) Observe(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, took)
}

// Share is the Config.Adjust.
func (l *latency) Share() float64 {
	l.mu.Lock()
	took := l.took
	l.took = nil
	l.mu.Unlock()
	slices.Sort(took)
	var p99 time.Duration // without requests there is no load
	if n := len(took); n > 0 {
		p99 = took[n*99/100]
	}
	return l.shed.next(p99.Seconds())
}

func ExampleConfig_adjustLatency() {
	service := &latency{shed: shedding{share: 1, high: 0.250, low: 0.150}}
	limiter, _ := pglimittest.New(pglimittest.Memory(), pglimit.Config{Name: "api", Limit: pglimit.PerSecond(100), Adjust: service.Share})
	defer func() { _ = limiter.Close(context.Background()) }()
	for _, slowest := range []string{"100ms", "400ms", "400ms", "200ms", "100ms"} {
		took, _ := time.ParseDuration(slowest)
		for range 98 {
			service.Observe(10 * time.Millisecond)
		}
		service.Observe(took)
		service.Observe(took)
		fmt.Printf("%v: %.2f\n", took, service.Share()) // which the Limiter calls every 100 ms
	}
	// Output:
	// 100ms: 1.00
	// 400ms: 0.90
	// 400ms: 0.81
	// 200ms: 0.81
	// 100ms: 0.83
}

// Critical callers are asked about by a Limiter of their own, which does not yield.
func ExampleConfig_adjustCritical() {
	ctx, memory := context.Background(), pglimittest.Memory()
	overload := func() float64 { return 0.2 } // such as byPressure
	ordinary, _ := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(50), Adjust: overload})
	critical, _ := pglimittest.New(memory, pglimit.Config{Name: "api critical", Limit: pglimit.PerSecond(50)})
	defer func() { _ = ordinary.Close(ctx) }()
	ask := func(path string) bool {
		limiter := ordinary
		if path == "/checkout" {
			limiter = critical
		}
		d, err := limiter.Allow(ctx, "everybody")
		return err == nil && d.Allowed
	}
	for _, path := range []string{"/search", "/checkout"} {
		granted := 0
		for range 100 {
			if ask(path) {
				granted++
			}
		}
		fmt.Println(path, granted)
	}
	// Output:
	// /search 10
	// /checkout 50
}
