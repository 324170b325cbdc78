package bench

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// sample is what was counted up to one moment.
type sample struct {
	trips     int64 // on the wire
	known     bool  // the server answered
	position  position
	deadlocks int64
}

// sampleTime is how long the server may take to answer: a late sample says nothing about its moment.
const sampleTime = time.Second

func takeSample(ctx context.Context, observer *pgxpool.Pool, trips func() int64) sample {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	s := sample{trips: trips()}
	err := observer.QueryRow(ctx, `
		select `+positionColumns+`,
			(select d.deadlocks from pg_catalog.pg_stat_database d where d.datname = current_database())`,
	).Scan(&s.position.wal, &s.position.xids, &s.deadlocks)
	s.known = err == nil
	return s
}

// since puts what happened since the sample before into the point.
func (s sample) since(before sample, p *result.Point) {
	p.RoundTrips = s.trips - before.trips
	if s.known && before.known {
		p.WALBytes = new(s.position.wal - before.position.wal)
		p.TransactionIDs = new(s.position.xids - before.position.xids)
		p.Deadlocks = new(max(0, s.deadlocks-before.deadlocks)) // a crash resets them
	}
}

// follow takes a sample now, one at the end of each interval, and one when the function that
// it returns is called, which returns them. The n-th is that of the end of the n-th interval,
// and the last that of the end of the run. While the server does not answer, a sample takes
// longer than an interval: those that are missed are not known, and the others stay in place.
func follow(ctx context.Context, interval time.Duration, take func(context.Context) sample) (stop func() []sample) {
	following, cancel := context.WithCancel(ctx)
	samples := []sample{take(following)}
	begin := time.Now()
	// passed is how many intervals are over.
	passed := func() int { return int(time.Since(begin) / interval) }
	miss := func(until int) {
		for len(samples) < until {
			samples = append(samples, sample{trips: samples[len(samples)-1].trips})
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				number := passed()
				s := take(following)
				if following.Err() != nil { // the run was over before the server answered
					return
				}
				miss(number)
				samples = append(samples, s)
			case <-following.Done():
				return
			}
		}
	}()
	return func() []sample {
		cancel()
		<-done
		miss(passed())
		return append(samples, take(context.WithoutCancel(ctx)))
	}
}
