package promlimit

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/ratelimit/semaphore"
)

// Semaphores exports the Stats of some Semaphores: see [NewSemaphores].
type Semaphores struct{ semaphores []*semaphore.Semaphore }

var _ prometheus.Collector = (*Semaphores)(nil)

var (
	permitsWaiting  = permitsDesc("waiting", "Callers in this process that wait for a permit.")
	permitsAcquired = permitsDesc("acquired_total", "Permits that were acquired.")
	permitsRefused  = permitsDesc("refused_total", "Calls that found no place.")
	permitsLost     = permitsDesc("lost_total", "Permits that expired before they were released.")
)

func permitsDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("pglimit_permits_"+name, help, []string{"limiter"}, nil)
}

// NewSemaphores makes a collector of the gauge pglimit_permits_waiting, and of the counters
// pglimit_permits_acquired_total, pglimit_permits_refused_total and pglimit_permits_lost_total, with the label limiter:
// the Name of the semaphore's Config. They count in this process; [NewDatabase] exports how many permits all processes
// hold. Register one collector with all Semaphores. It panics if one of them is nil.
func NewSemaphores(semaphores ...*semaphore.Semaphore) *Semaphores {
	for _, s := range semaphores {
		if s == nil {
			//nolint:forbidigo // the program is not set up properly, and Register could not say so
			panic(errors.New("promlimit: a semaphore of NewSemaphores is nil"))
		}
	}
	return &Semaphores{semaphores}
}

// Describe implements [prometheus.Collector].
func (s *Semaphores) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{permitsWaiting, permitsAcquired, permitsRefused, permitsLost} {
		descs <- desc
	}
}

// Collect implements [prometheus.Collector].
func (s *Semaphores) Collect(metrics chan<- prometheus.Metric) {
	for _, from := range s.semaphores {
		send := func(desc *prometheus.Desc, kind prometheus.ValueType, n int64) {
			metrics <- prometheus.MustNewConstMetric(desc, kind, float64(n), from.Config().Name)
		}
		stats := from.Stats()
		send(permitsWaiting, prometheus.GaugeValue, stats.Waiting)
		send(permitsAcquired, prometheus.CounterValue, stats.Acquired)
		send(permitsRefused, prometheus.CounterValue, stats.Refused)
		send(permitsLost, prometheus.CounterValue, stats.Lost)
	}
}
