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

// sampleTime is how long the server may take to tell: a sample that comes late says
// nothing about its moment.
const sampleTime = time.Second

func takeSample(ctx context.Context, observer *pgxpool.Pool, trips func() int64) sample {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	s := sample{trips: trips()}
	err := observer.QueryRow(ctx, `
		select (pg_current_wal_insert_lsn() - '0/0')::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
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

// follow takes a sample now, one at each boundary between that many intervals, and the last
// when the function that it returns is called; that returns them. So the n-th sample is of
// the end of the n-th interval, also where the server does not answer: a sample that is not
// there when the next one is due is given up.
func follow(ctx context.Context, interval time.Duration, intervals int, take func(context.Context) sample) (stop func() []sample) {
	samples := []sample{take(ctx)}
	begin := time.Now()
	following, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for number := 1; number < intervals; number++ {
			due := begin.Add(time.Duration(number) * interval)
			if pause(following, time.Until(due)); following.Err() != nil {
				return
			}
			within, cancel := context.WithDeadline(following, due.Add(interval))
			samples = append(samples, take(within))
			cancel()
		}
	}()
	return func() []sample {
		cancel()
		<-done
		return append(samples, take(ctx))
	}
}
