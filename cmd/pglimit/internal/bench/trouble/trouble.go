// Package trouble injects faults into a run: rows that another session holds locked, and a server that restarts.
package trouble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Plan is the faults to inject. The zero value: none.
type Plan struct {
	// LockShare is the share of the keys whose rows somebody else holds locked, at any time: from 0 to 1. Any share above 0
	// is at least one key. (Callers of exclusion_range do not notice: it locks no rows.) Each lock writes some WAL.
	LockShare float64

	// LockFor is how long the rows are held before others are. Zero: 100 ms.
	LockFor time.Duration

	// Seed of the choice of keys: the same seed chooses the same keys in the same order.
	Seed uint64

	// RestartAfter is when the server is restarted, counted from the beginning of Run. Zero: it is not.
	RestartAfter time.Duration
}

// Target is what the faults apply to.
type Target struct {
	// Database is where the rows are, and Application the application_name of the session that holds them. It is one
	// connection, beside those of the callers.
	Database    *pgx.ConnConfig
	Application string

	// Table is the table's qualified name: pglimit.upsert. It has a column key, and a column limiter unless Limiter is
	// empty, as for the published statements. Keys are those of the load; one that has no row yet is not locked.
	Table, Limiter string
	Keys           []string

	// Restart restarts the server and returns once it answers again.
	Restart func(context.Context) error
}

// Report is the outcome.
type Report struct {
	LockedKeys int           // at a time
	RowLocks   int64         // in all
	Held       time.Duration // added up: 3 rows for 100 ms each are 300 ms
	Lost       int64         // connections of the session that held rows, as in a restart

	Restarted bool
	Away      time.Duration // from the order to shut down to the first answer
}

// Any says whether the plan has any trouble in it.
func (p Plan) Any() bool { return p.LockShare > 0 || p.RestartAfter > 0 }

// Run injects the faults until ctx ends, which is no error. Then it leaves no session and no lock. A restart that has
// begun is finished nevertheless, because tidying up needs the server.
//
// It returns early with an error if a fault cannot be injected: the server does not come back, or the rows may not be
// locked. The report says what was done until then.
func (p Plan) Run(ctx context.Context, t Target) (report Report, err error) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var working sync.WaitGroup
	var locking, restarting error
	if p.LockShare > 0 {
		h := newHolder(p, t)
		working.Go(func() {
			if locking = h.run(ctx); locking != nil {
				giveUp()
			}
		})
		defer func() {
			report.LockedKeys, report.RowLocks, report.Held, report.Lost = h.atATime, h.rowLocks, h.held, h.lost
		}()
	}
	if p.RestartAfter > 0 && wait(ctx, p.RestartAfter) {
		const within = 3 * time.Minute // a shutdown with its checkpoint, and a start
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
		began := time.Now()
		if restarting = t.Restart(ctx); restarting != nil {
			giveUp()
		} else {
			report.Restarted, report.Away = true, time.Since(began)
		}
		cancel()
	}
	working.Wait()
	if err := errors.Join(locking, restarting); err != nil {
		return report, fmt.Errorf("trouble: %w", err)
	}
	return report, nil
}

// holder is a session that holds some rows for a while, then others.
type holder struct {
	target  Target
	holdFor time.Duration
	atATime int
	random  *rand.Rand
	order   []string  // the keys; the first atATime are held
	conn    *pgx.Conn // nil: there is none

	rowLocks, lost int64
	held           time.Duration
}

func newHolder(p Plan, t Target) *holder {
	n := len(t.Keys)
	return &holder{
		target: t, holdFor: cmp.Or(p.LockFor, 100*time.Millisecond),
		atATime: min(n, max(1, int(math.Round(p.LockShare*float64(n))))),
		random:  rand.New(rand.NewPCG(p.Seed, 0)), //nolint:gosec // no secret: the same seed is to choose the same keys
		order:   append([]string(nil), t.Keys...),
	}
}

// run returns nil when ctx has ended.
func (h *holder) run(ctx context.Context) error {
	defer h.disconnect()
	if err := h.connect(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the session that locks rows: %w", err)
	}
	for ctx.Err() == nil {
		if h.conn == nil && h.connect(ctx) != nil {
			wait(ctx, 100*time.Millisecond) // the server may be on its way back
			continue
		}
		err := h.round(ctx)
		var pg *pgconn.PgError
		switch {
		case ctx.Err() != nil:
		case h.conn.IsClosed():
			h.lost++
			h.disconnect()
		case errors.As(err, &pg) && pg.Code == "55P03": // lock_not_available
		case err != nil:
			return fmt.Errorf("locking rows of %s: %w", h.target.Table, err)
		}
	}
	return nil
}

// round locks the rows of some keys, holds them, and lets go of them. It never deadlocks with callers: of several rows it
// takes those that nobody holds, and for a single one it waits 50 ms at most.
func (h *holder) round(ctx context.Context) error {
	for i := range h.atATime {
		j := i + h.random.IntN(len(h.order)-i)
		h.order[i], h.order[j] = h.order[j], h.order[i]
	}
	lock := "select from " + pgx.Identifier(strings.Split(h.target.Table, ".")).Sanitize() + " where key = any($1::text[])"
	args := []any{h.order[:h.atATime]}
	if h.target.Limiter != "" {
		lock, args = lock+" and limiter = $2::text", append(args, h.target.Limiter)
	}
	if lock += " for update"; h.atATime > 1 {
		lock += " skip locked"
	}
	if err := h.send(ctx, "begin isolation level read committed; set local lock_timeout = '50ms'; set local statement_timeout = 0"); err != nil {
		return err
	}
	tag, err := h.conn.Exec(ctx, lock, args...)
	if err != nil {
		return errors.Join(err, h.send(ctx, "rollback"))
	}
	began := time.Now()
	wait(ctx, h.holdFor)
	ctx, cancel := goodbye(ctx)
	defer cancel()
	err = h.send(ctx, "commit")
	h.rowLocks += tag.RowsAffected()
	h.held += time.Duration(tag.RowsAffected()) * time.Since(began)
	return err
}

// send sends statements without arguments, in one round trip.
func (h *holder) send(ctx context.Context, statements string) error {
	return h.conn.PgConn().Exec(ctx, statements).Close()
}

func (h *holder) connect(ctx context.Context) error {
	config := h.target.Database.Copy()
	config.RuntimeParams["application_name"] = h.target.Application
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil {
		h.conn = conn
	}
	return err
}

// disconnect returns when the server has heard that the session is over: pgx cancels a statement that was under way, and
// closes the connection, in the background.
func (h *holder) disconnect() {
	if h.conn == nil {
		return
	}
	ctx, cancel := goodbye(context.Background())
	defer cancel()
	_ = h.conn.Close(ctx) // it is gone in any case
	select {
	case <-h.conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
	h.conn = nil
}

// goodbye is for what a session still has to do when the run is over: that does not wait for the server to notice.
func goodbye(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// wait returns after that long, or false as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
