package live

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Recorder records what one instance did since it was last asked. Its OnDecision and OnRoundTrip go into the Config of
// each Limiter, its Handler around the limited endpoints. The zero Recorder is ready for concurrent use.
type Recorder struct {
	mu  sync.Mutex
	new recorded
}

// recorded since the last sample.
type recorded struct {
	grants, denials, trips []time.Duration
	taken                  []pglimit.Decision // grants of Postgres
}

// mostRecorded bounds the memory of a second. Percentiles leave out what comes after that many of a kind.
const mostRecorded = 10_000

func note[T any](list *[]T, value T) {
	if len(*list) < mostRecorded {
		*list = append(*list, value)
	}
}

// OnDecision is a Config.OnDecision.
func (r *Recorder) OnDecision(_ context.Context, _ pglimit.Request, d pglimit.Decision, err error) {
	if err != nil || d.Granted == 0 || d.Source != pglimit.FromDatabase {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	note(&r.new.taken, d)
}

// OnRoundTrip is a Config.OnRoundTrip.
func (r *Recorder) OnRoundTrip(_ context.Context, trip pglimit.RoundTrip) {
	r.mu.Lock()
	defer r.mu.Unlock()
	note(&r.new.trips, trip.Duration)
}

// Handler notes how long next takes, and whether it answers 429.
func (r *Recorder) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		answer := &status{ResponseWriter: w, code: http.StatusOK}
		began := time.Now()
		next.ServeHTTP(answer, request)
		took := time.Since(began)
		r.mu.Lock()
		defer r.mu.Unlock()
		switch answer.code {
		case http.StatusOK:
			note(&r.new.grants, took)
		case http.StatusTooManyRequests:
			note(&r.new.denials, took)
		}
	})
}

// status remembers the status code of an answer.
type status struct {
	http.ResponseWriter
	code int
}

func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap is for [http.ResponseController].
func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// flush returns what was recorded since the last call.
func (r *Recorder) flush() recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := r.new
	r.new = recorded{}
	return since
}

// percentile of durations, in seconds. Nil: there are none.
func percentile(durations []time.Duration, percent int) *float64 {
	if len(durations) == 0 {
		return nil
	}
	slices.Sort(durations)
	return new(durations[(len(durations)-1)*percent/100].Seconds())
}
