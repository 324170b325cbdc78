package trouble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	goodbyeWithin = 5 * time.Second        // for what a session still has to do when the run is over
	retryAfter    = 100 * time.Millisecond // when the server could not be reached
)

// opening of a transaction. The wait for a lock is short, so that the rows that are held already
// are not held much longer than planned. The savepoint is for a wait that was too long.
const opening = "begin isolation level read committed; set local lock_timeout = '50ms'; savepoint waiting"

// SQLSTATE codes after which the session can go on: see appendix A of the PostgreSQL manual.
const (
	lockNotAvailable     = "55P03"
	queryCanceled        = "57014" // the role has a statement_timeout
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
)

// holder is a session that holds some rows for a while, then others.
type holder struct {
	target  Target
	lock    string // the statement that locks; $1 the keys, $2 the limiter
	holdFor time.Duration
	atATime int
	random  *rand.Rand
	order   []int32   // the numbers of the keys; the first atATime are held
	conn    *pgx.Conn // nil: there is none

	rowLocks, lost int64
	held           time.Duration
}

func newHolder(p Plan, t Target) *holder {
	n := len(t.Keys)
	h := &holder{
		target: t, lock: lockStatement(t), holdFor: cmp.Or(p.LockFor, DefaultLockFor),
		atATime: min(n, max(1, int(math.Round(p.LockShare*float64(n))))),
		random:  rand.New(rand.NewPCG(p.Seed, 0)), //nolint:gosec // no secret: the same seed is to choose the same keys
		order:   make([]int32, n),
	}
	for i := range h.order {
		h.order[i] = int32(i)
	}
	return h
}

// lockStatement locks in the order in which the strategies lock several buckets: key by key,
// bytewise. Then nobody holds a row that this session waits for while it waits for this session.
func lockStatement(t Target) string {
	whose := ""
	if t.Limiter != "" {
		whose = " and limiter = $2::text"
	}
	table := pgx.Identifier(strings.Split(t.Table, ".")).Sanitize()
	return "select from " + table + ` where key = any($1::text[])` + whose + ` order by key collate "C" for update`
}

// run returns nil when ctx has ended.
func (h *holder) run(ctx context.Context) error {
	defer h.disconnect()
	if err := h.connect(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("trouble: the session that locks rows: %w", err)
	}
	for ctx.Err() == nil {
		if h.conn == nil && h.connect(ctx) != nil {
			wait(ctx, retryAfter) // the server may be on its way back
			continue
		}
		err := h.round(ctx)
		switch {
		case ctx.Err() != nil:
		case h.conn.IsClosed():
			h.lost++
			h.disconnect()
		case err != nil:
			return fmt.Errorf("trouble: locking rows of %s: %w", h.target.Table, err)
		}
	}
	return nil
}

// round locks the rows of some keys, holds them, and lets go of them.
func (h *holder) round(ctx context.Context) error {
	if err := h.send(ctx, opening); err != nil {
		return err
	}
	rows, err := h.lockRows(ctx, h.choose())
	switch {
	case isOneOf(err, lockNotAvailable, queryCanceled, serializationFailure, deadlockDetected):
		return h.send(ctx, "rollback")
	case err != nil:
		return err
	}
	began := time.Now()
	wait(ctx, h.holdFor)
	// The end of the run does not wait for the server to notice that the session is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeWithin)
	defer cancel()
	err = h.send(ctx, "commit")
	if h.rowLocks += rows; rows > 0 {
		h.held += time.Duration(rows) * time.Since(began)
	}
	return err
}

// lockRows waits for rows that others hold; if that takes too long, it locks the rest.
func (h *holder) lockRows(ctx context.Context, keys []string) (rows int64, err error) {
	args := []any{keys}
	if h.target.Limiter != "" {
		args = append(args, h.target.Limiter)
	}
	tag, err := h.conn.Exec(ctx, h.lock, args...)
	if isOneOf(err, lockNotAvailable) {
		if err := h.send(ctx, "rollback to savepoint waiting"); err != nil {
			return 0, err
		}
		tag, err = h.conn.Exec(ctx, h.lock+" skip locked", args...)
	}
	return tag.RowsAffected(), err
}

// choose draws the next keys, all different.
func (h *holder) choose() []string {
	keys := make([]string, h.atATime)
	for i := range keys {
		j := i + h.random.IntN(len(h.order)-i)
		h.order[i], h.order[j] = h.order[j], h.order[i]
		keys[i] = h.target.Keys[h.order[i]]
	}
	return keys
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

// disconnect returns when the server has heard that the session is over: pgx cancels a statement
// that was under way, and closes the connection, in the background.
func (h *holder) disconnect() {
	if h.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeWithin)
	defer cancel()
	_ = h.conn.Close(ctx) // it is gone in any case
	select {
	case <-h.conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
	h.conn = nil
}

func isOneOf(err error, codes ...string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.Contains(codes, pg.Code)
}
