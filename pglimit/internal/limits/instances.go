package limits

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// longestCountEvery is how often an instance says at least that it lives: five times before it counts as gone.
	longestCountEvery = time.Second

	// countTimeout of a call that counts.
	countTimeout = time.Second

	// stillLive is how long an instance is live after a call, as in pglimit.instance_lives. A process that has not
	// even tried to call for as long was stopped: the others may have gone on without it.
	stillLive = 5 * time.Second

	// sayEvery is how often an instance that does not count others says that it lives: three times before it is
	// forgotten. So "pglimit limits set" can say how many follow a rule. Where it cannot, because of a right for
	// instance, it tries again sixty times later.
	sayEvery = 10 * time.Second
)

// Live is how many instances of the Limiter's name there are: 0 while this one is not counted. counts is false where
// instances are not counted, or where a right that is missing, or the like, keeps this one from it.
// pglimit.instance_lives says why the shares of instances that count each other are never more than the limit.
func (s *Stage) Live() (live int, counts bool) {
	if s == nil || !s.table.count {
		return 0, false
	}
	if time.Since(s.table.start)-time.Duration(s.table.tried.Load()) <= stillLive {
		live = int(s.live.Load())
	}
	return live, live > 0 || !s.table.cannotSay.Load()
}

// sayGone says that the instance is gone.
func (s *Stage) sayGone(ctx context.Context) {
	if s.said.Swap(0) == 0 || s.table.why.Load() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	_, _ = s.table.session.Exec(ctx,
		"delete from pglimit.instances where limiter = $1::text and id = $2::text", s.limiter, s.id)
}

// sayOnce says that the instances live, if that is due. If they count, it hears how many there are: after an error,
// the count of before holds.
func (t *Table) sayOnce(ctx context.Context) {
	now := time.Since(t.start)
	due := t.count
	var limiters, ids []string
	byID := make(map[string]*Stage)
	t.mu.Lock()
	for of := range t.users {
		if of.id != "" {
			due = due || now >= time.Duration(of.said.Load())+sayEvery || of.said.Load() == 0
			limiters, ids = append(limiters, of.limiter), append(ids, of.id)
			byID[of.id] = of
		}
	}
	t.mu.Unlock()
	if len(ids) == 0 || !due || now < t.sayNext {
		return
	}
	t.tried.Store(int64(now))
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	var text *string
	err := t.session.Row(ctx, "select pglimit.instance_lives($1::text[], $2::text[], $3::bigint, $4::boolean)", []any{limiters, ids, t.heard, t.count}, &text)
	t.heard = 0
	var answer struct {
		Turn      int64             `json:"turn"`
		Instances map[string][2]any `json:"instances"`
	}
	if err == nil && text != nil {
		err = json.Unmarshal([]byte(*text), &answer)
	}
	if err != nil {
		t.noteCannotSay(ctx, err)
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
		byID[id].live.Store(count)
	}
	t.heard = answer.Turn // when what it says is known here
	t.cannotSay.Store(false)
}

// noteCannotSay notes an error that does not end by itself, as an outage does, and logs it once.
func (t *Table) noteCannotSay(ctx context.Context, err error) {
	explained := explain(err)
	lasts := !errors.Is(explained, rate.ErrUnavailable) ||
		postgres.Is(err, postgres.FeatureNotSupported, postgres.ReadOnlyTransaction) // above READ COMMITTED; on a standby
	if !t.count {
		t.sayNext = time.Since(t.start) + sayEvery
		if lasts {
			t.sayNext += 59 * sayEvery
		}
	}
	if !lasts || t.cannotSay.Swap(true) || t.logger == nil {
		return
	}
	level, what := slog.LevelError, "pglimit: live instances cannot be counted, FailLocal takes the share for the number that it was given"
	if !t.count {
		level, what = slog.LevelWarn, "pglimit: this instance cannot say that it follows the table of limits, which it does"
	}
	t.logger.LogAttrs(ctx, level, what, slog.String("error", explained.Error()))
}
