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

	// stillLive is how long an instance is live after a call, as in pglimit.instance_lives. A process that has not even tried
	// to call for as long was stopped: the others may have gone on without it.
	stillLive = 5 * time.Second

	// sayEvery is how often an instance that does not count others says that it lives: three times before it is forgotten. So
	// "pglimit limits set" can say how many follow a rule. Where it cannot, because of a right for instance, it tries again sixty times later.
	sayEvery = 10 * time.Second
)

// instance is a Limiter that follows the table, as one of the live instances of its name. If they count each other, they share a
// limit: pglimit.instance_lives says why their shares are never more than the limit.
type instance struct {
	limits      *Limits
	limiter, id string
	said        atomic.Int64 // when it last said that it lives, since the start; 0: never
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
	if i == nil || i.said.Load() == 0 || i.limits.why.Load() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	_, _ = i.limits.session.Exec(ctx, "delete from pglimit.instances where limiter = $1::text and id = $2::text", i.limiter, i.id)
}

// sayOnce says that the instances live, if that is due. If they count, it hears how many there are: after an error, the count
// of before holds.
func (l *Limits) sayOnce(ctx context.Context) {
	now := time.Since(l.start)
	due := l.count
	var limiters, ids []string
	byID := make(map[string]*instance)
	l.mu.Lock()
	for _, of := range l.users {
		if of != nil {
			due = due || now >= time.Duration(of.said.Load())+sayEvery || of.said.Load() == 0
			limiters, ids = append(limiters, of.limiter), append(ids, of.id)
			byID[of.id] = of
		}
	}
	l.mu.Unlock()
	if len(ids) == 0 || !due || now < l.sayNext {
		return
	}
	l.tried.Store(int64(now))
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	var text *string
	err := l.session.Row(ctx, "select pglimit.instance_lives($1::text[], $2::text[], $3::bigint, $4::boolean)", []any{limiters, ids, l.heard, l.count}, &text)
	l.heard = 0
	var answer struct {
		Turn      int64             `json:"turn"`
		Instances map[string][2]any `json:"instances"`
	}
	if err == nil && text != nil {
		err = json.Unmarshal([]byte(*text), &answer)
	}
	if err != nil {
		l.noteCannotSay(ctx, err)
		return
	}
	for _, of := range byID {
		of.said.Store(int64(now))
	}
	for id, of := range answer.Instances {
		count := int64(0)
		if live, counted := of[0].(float64); counted && of[1] == true {
			count = int64(live)
		}
		byID[id].count.Store(count)
	}
	l.heard = answer.Turn // when what it says is known here
	l.cannotSay.Store(false)
}

// noteCannotSay notes an error that does not end by itself, as an outage does, and logs it once.
func (l *Limits) noteCannotSay(ctx context.Context, err error) {
	var pg *pgconn.PgError
	explained := explainLimits(err)
	lasts := CauseOf(explained).isSetUp() || errors.As(err, &pg) && (pg.Code == "0A000" || pg.Code == "25006") // above READ COMMITTED; on a standby
	if !l.count {
		l.sayNext = time.Since(l.start) + sayEvery
		if lasts {
			l.sayNext += 59 * sayEvery
		}
	}
	if !lasts || l.cannotSay.Swap(true) || l.logger == nil {
		return
	}
	level, what := slog.LevelError, "pglimit: live instances cannot be counted, FailLocal takes the share for the number that it was given"
	if !l.count {
		level, what = slog.LevelWarn, "pglimit: this instance cannot say that it follows the table of limits, which it does"
	}
	l.logger.LogAttrs(ctx, level, what, slog.String("error", explained.Error()))
}
