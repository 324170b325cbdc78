package pglimit

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// longestCountEvery is how often an instance says at least that it lives: five times before it counts as gone.
	longestCountEvery = time.Second

	// countTimeout of a call that counts.
	countTimeout = time.Second

	// stillLive is how long an instance is live after a call, as in 00007_instances.sql. A process that has not even tried
	// to call for as long was stopped: the others may have gone on without it.
	stillLive = 5 * time.Second
)

// instance is a Limiter, as one of the live instances that share a limit. 00007_instances.sql says why their shares are
// never more than the limit.
type instance struct {
	limits      *Limits
	limiter, id string
	count       atomic.Int64 // live instances, by the last answer; 0: this one is not counted
}

type instanceKey struct{} // of the *instance in the context of OnError

// live is how many instances there are, if this one is counted.
func (i *instance) live() (live int, counted bool) {
	if time.Since(i.limits.start)-time.Duration(i.limits.tried.Load()) > stillLive {
		return 0, false
	}
	live = int(i.count.Load())
	return live, live > 0
}

// leave says that the instance is gone. If Postgres does not answer, the others notice it when it is no longer live.
func (i *instance) leave(ctx context.Context) {
	if i == nil || i.limits.session == nil || i.limits.read.Load() == 0 || i.limits.why.Load() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	_, _ = i.limits.session.Exec(ctx, "delete from pglimit.instances where limiter = $1::text and id = $2::text", i.limiter, i.id)
}

// countOnce says that the instances live, and hears how many there are. After an error, the count of before holds.
func (l *Limits) countOnce(ctx context.Context) {
	l.mu.Lock()
	var limiters, ids []string
	byID := make(map[string]*instance)
	for _, of := range l.users {
		if of != nil {
			limiters, ids = append(limiters, of.limiter), append(ids, of.id)
			byID[of.id] = of
		}
	}
	l.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	l.tried.Store(int64(time.Since(l.start)))
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	var text string
	err := l.session.Row(ctx, "select pglimit.instance_lives($1::text[], $2::text[], $3::bigint)", []any{limiters, ids, l.heard}, &text)
	l.heard = 0
	var answer struct {
		Turn      int64             `json:"turn"`
		Instances map[string][2]any `json:"instances"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	if err != nil {
		l.noteCannotCount(ctx, err)
		return
	}
	for id, of := range answer.Instances {
		count := int64(0)
		if live, counted := of[0].(float64); counted && of[1] == true {
			count = int64(live)
		}
		byID[id].count.Store(count)
	}
	l.heard = answer.Turn // when what it says is known here
	l.cannotCount.Store(false)
}

// noteCannotCount notes an error that does not end by itself, as an outage does, and logs it once.
func (l *Limits) noteCannotCount(ctx context.Context, err error) {
	var pg *pgconn.PgError
	explained := explainLimits(err)
	isolated := errors.As(err, &pg) && pg.Code == "0A000" // above READ COMMITTED
	if !CauseOf(explained).isSetUp() && !isolated {
		return
	}
	if !l.cannotCount.Swap(true) && l.logger != nil {
		l.logger.LogAttrs(ctx, slog.LevelError, "pglimit: live instances cannot be counted, FailLocal takes the share for the number that it was given", slog.String("error", explained.Error()))
	}
}
