package wire

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// nowhere answers at once.
type nowhere struct{ net.Conn }

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) Read([]byte) (int, error)    { return 1, nil }
func (nowhere) Close() error                { return nil }

// What counting adds to a round trip: compare the two.
func BenchmarkRoundTrip(b *testing.B) {
	var m Meter
	for name, conn := range map[string]net.Conn{"bare": nowhere{}, "counted": m.add(nowhere{})} {
		b.Run(name, func(b *testing.B) {
			p := make([]byte, 1)
			for b.Loop() {
				_, _ = conn.Write(p)
				_, _ = conn.Read(p)
			}
		})
	}
}

// What reading the meter costs, with many connections.
func BenchmarkCount(b *testing.B) {
	var m Meter
	for range 100 {
		m.add(nowhere{})
	}
	for b.Loop() {
		m.Count()
	}
}

// How much later than asked for a query is answered, by 1 and by 32 callers at once. Compare
// ns/op with and without latency, and user and system time.
func BenchmarkQuery(b *testing.B) {
	for _, callers := range []int32{1, 32} {
		for _, latency := range []time.Duration{-1, 0, 2 * time.Millisecond} {
			name := "counted"
			switch {
			case latency < 0:
				name = "bare"
			case latency > 0:
				name = latency.String()
			}
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				pool, _ := open(b, serverURL(b), callers, latency)
				if latency < 0 {
					pool = bare(b, callers)
				}
				must(b, pool.Ping(b.Context()))
				b.ResetTimer()
				var asking sync.WaitGroup
				for range callers {
					asking.Go(func() {
						for range b.N {
							if _, err := pool.Exec(b.Context(), "select 1"); err != nil {
								b.Error(err)
							}
						}
					})
				}
				asking.Wait()
			})
		}
	}
}

func bare(b *testing.B, conns int32) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(serverURL(b))
	must(b, err)
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	must(b, err)
	b.Cleanup(pool.Close)
	return pool
}

// How late a wait ends.
func BenchmarkPause(b *testing.B) {
	for name, newPause := range pauses {
		b.Run(name, func(b *testing.B) {
			p := newPause()
			defer p.close()
			var late, most time.Duration
			for i := 0; b.Loop(); i++ {
				due := time.Now().Add(time.Millisecond + time.Duration(i%100)*17*time.Microsecond)
				must(b, p.until(due))
				by := time.Since(due)
				late, most = late+by, max(most, by)
			}
			b.ReportMetric(float64(late.Microseconds())/float64(b.N), "µs-late")
			b.ReportMetric(float64(most.Microseconds()), "µs-late-at-most")
		})
	}
}
