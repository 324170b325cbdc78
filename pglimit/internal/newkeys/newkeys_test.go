package newkeys_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/internal/newkeys"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// server is what a Stage asks. It has rows of some keys, and tokens for new ones.
type server struct {
	mu            sync.Mutex
	rows          map[string]bool
	tokens        int64
	look, token   func(ctx context.Context) error // if they are set, before an answer
	looks, takes  int
	durable, held bool
}

func (s *server) stage(t *testing.T) *newkeys.Stage {
	t.Helper()
	stage, err := newkeys.New("api", rate.PerSecond(2), rate.Durable, 100, newkeys.Functions{
		Look: func(ctx context.Context, peeks []*claims.Claim) { s.each(ctx, s.look, &s.looks, peeks, s.peek) },
		Take: func(ctx context.Context, tokens []*claims.Claim) { s.each(ctx, s.token, &s.takes, tokens, s.take) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return stage
}

func (s *server) each(
	ctx context.Context, first func(context.Context) error, asked *int, all []*claims.Claim, answer func(*claims.Claim),
) {
	for _, c := range all {
		s.mu.Lock()
		*asked++
		s.mu.Unlock()
		if first != nil {
			if err := first(ctx); err != nil {
				c.Fail(err)
				continue
			}
		}
		s.mu.Lock()
		answer(c)
		s.mu.Unlock()
	}
}

func (s *server) peek(c *claims.Claim) {
	r := c.Requests[0]
	c.Decisions[0] = rate.Decision{Allowed: true, HasRow: s.rows[r.Key], Blocked: r.Key == "blocked"}
}

func (s *server) take(c *claims.Claim) {
	r := c.Requests[0]
	s.durable = r.Limiter == "api (new keys)" && r.Durability == rate.Durable
	c.Decisions[0] = rate.Decision{RetryAfter: time.Second, Contended: s.held}
	if r.Tokens <= s.tokens {
		s.tokens -= r.Tokens
		c.Decisions[0] = rate.Decision{Allowed: true, Granted: r.Tokens}
	}
}

// asks about units, such as "a b+c d:0": a group has several keys, and 0 is a peek. It says who was admitted.
func asks(ctx context.Context, s *newkeys.Stage, units string) (all []*claims.Claim, admitted string) {
	for unit := range strings.FieldsSeq(units) {
		keys := strings.Split(unit, "+")
		var requests []rate.Request
		for _, key := range keys {
			key, peek := strings.CutSuffix(key, ":0")
			r := rate.Request{Limiter: "api", Key: key, Limit: rate.PerHour(10), Tokens: 1, Unit: 1}
			if peek {
				r.Tokens = 0
			}
			if len(keys) > 1 {
				r.Group = 1
			}
			requests = append(requests, r)
		}
		all = append(all, claims.New(requests...))
	}
	said := make([]string, 0, len(all))
	through := s.Admit(ctx, all)
	for i, unit := range strings.Fields(units) {
		if slices.Contains(through, all[i]) {
			said = append(said, unit)
		}
	}
	return all, strings.Join(said, " ")
}

// A key without a row needs a token; several of a group need theirs together, and one call needs one for a key.
func TestWhoNeedsAToken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		asks         string
		tokens       int64
		admitted     string
		through      int64
		looks, takes int
	}{
		{asks: "row", admitted: "row", looks: 1},
		{asks: "a", tokens: 1, admitted: "a", through: 1, looks: 1, takes: 1},
		{asks: "a", looks: 1, takes: 1},
		{asks: "a b a", tokens: 2, admitted: "a b a", through: 2, looks: 2, takes: 2},
		{asks: "a:0 blocked", admitted: "a:0 blocked", looks: 1},
		{asks: "a+row", tokens: 1, admitted: "a+row", through: 1, looks: 2, takes: 1},
		{asks: "a+b", tokens: 1, looks: 2, takes: 1},
		{asks: "a+b+c", tokens: 9, looks: 3}, // more than the burst
	} {
		s := &server{rows: map[string]bool{"row": true}, tokens: test.tokens}
		stage := s.stage(t)
		all, admitted := asks(t.Context(), stage, test.asks)
		through := stage.Through.Load()
		if admitted != test.admitted || through != test.through || s.looks != test.looks || s.takes != test.takes {
			t.Errorf("%s: admitted %q, %d tokens, %d looks, %d asked", test.asks, admitted, through, s.looks, s.takes)
		}
		for _, c := range all {
			d, refused := c.Decisions[0], admitted == ""
			if c.Err != nil || refused != (d.Source == rate.FromNewKeys) || refused && d.RetryAfter == 0 {
				t.Errorf("%s: %+v, %v", test.asks, d, c.Err)
			}
		}
		if _, again := asks(t.Context(), stage, test.asks); again != test.admitted {
			t.Errorf("%s: then admitted %q", test.asks, again)
		}
		if s.takes > 0 && !s.durable {
			t.Errorf("%s: the token is not durable", test.asks)
		}
	}
}

// Whatever of the two is not known, whether there is a row or whether there is a token: the request is not let through.
func TestAnErrorLetsNobodyThrough(t *testing.T) {
	t.Parallel()
	fails := func(context.Context) error { return rate.ErrUnavailable }
	for name, s := range map[string]*server{"look": {look: fails, tokens: 9}, "token": {token: fails, tokens: 9}} {
		all, admitted := asks(t.Context(), s.stage(t), "a b+c")
		for _, c := range all {
			if admitted != "" || !errors.Is(c.Err, rate.ErrUnavailable) {
				t.Errorf("%s: admitted %q, %v", name, admitted, c.Err)
			}
		}
	}
}

// In a group, the answer says which of its keys were refused, and whether somebody held the row of the tokens.
func TestWhatARefusedGroupIsTold(t *testing.T) {
	t.Parallel()
	s := &server{rows: map[string]bool{"row": true}, held: true}
	all, _ := asks(t.Context(), s.stage(t), "row+new")
	row, refused := all[0].Decisions[0], all[0].Decisions[1]
	if !row.Allowed || row.Source != rate.FromNewKeys ||
		refused.Allowed || !refused.Contended || refused.RetryAfter != time.Second {
		t.Errorf("%+v, %+v", row, refused)
	}
}

// All callers of a process who ask for one new key need one token: those who ask meanwhile, and who looked before.
func TestCallersOfOneNewKeyNeedOneToken(t *testing.T) {
	t.Parallel()
	for _, looksTake := range []time.Duration{0, time.Minute / 100} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{tokens: 100, token: func(context.Context) error { time.Sleep(time.Millisecond); return nil }}
			s.look = func(context.Context) error {
				s.mu.Lock()
				after := time.Duration(s.looks) * looksTake
				s.mu.Unlock()
				time.Sleep(after)
				return nil
			}
			stage := s.stage(t)
			var work sync.WaitGroup
			for range 20 {
				work.Go(func() {
					if all, admitted := asks(t.Context(), stage, "k"); admitted != "k" {
						t.Errorf("%+v", all[0])
					}
				})
			}
			work.Wait()
			if s.tokens != 99 || stage.Through.Load() != 1 {
				t.Errorf("looks take %v: %d tokens", looksTake, 100-s.tokens)
			}
		})
	}
}

// If the caller who asks for the token leaves, another one asks. If Postgres fails him, it has failed all who wait for
// him. Who leaves while he waits is told so.
func TestWhoWaitsForTheTokenOfANewKey(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, rate.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{tokens: 100}
			s.token = func(ctx context.Context) error {
				if s.takes > 1 {
					return nil
				}
				<-ctx.Done()
				return errors.Join(fails, map[bool]error{true: ctx.Err()}[fails == nil])
			}
			stage := s.stage(t)
			first, leave := context.WithCancel(t.Context())
			second, leaveToo := context.WithCancel(t.Context())
			var work sync.WaitGroup
			for i, ctx := range []context.Context{first, second, t.Context(), t.Context()} {
				work.Go(func() {
					all, admitted := asks(ctx, stage, "k")
					served := i > 1 && fails == nil
					left := i == 1 && !errors.Is(all[0].Err, context.Canceled)
					if (admitted == "k") != served || (all[0].Err == nil) != served || left {
						t.Errorf("caller %d, if the first ends by %v: %+v", i, fails, all[0])
					}
				})
				synctest.Wait()
			}
			leaveToo()
			synctest.Wait()
			leave()
			work.Wait()
			if want := map[bool]int{true: 2, false: 1}[fails == nil]; s.takes != want {
				t.Errorf("%d have asked, want %d", s.takes, want)
			}
		})
	}
}

// A row is known for 50 s from when it was asked about, however late the answer is. An answer about an ID that was sent
// again, and that a bucket is full, say nothing of it.
func TestSinceWhenARowIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		row := rate.Decision{Allowed: true, Granted: 1, HasRow: true, ResetAfter: time.Second}
		full, none := row, row
		full.ResetAfter, none.HasRow = 0, false
		request := rate.Request{Limiter: "api", Key: "k", Limit: rate.PerHour(10), Tokens: 1, Unit: 1}
		again := request
		again.ID = "id"
		for i, test := range []struct {
			r     rate.Request
			d     rate.Decision
			late  time.Duration
			known time.Duration // after the answer
		}{
			{request, row, 0, 50 * time.Second}, {request, row, 30 * time.Second, 20 * time.Second},
			{request, full, 0, 0}, {request, none, 0, 0}, {again, row, 0, 0},
		} {
			s := &server{rows: map[string]bool{"k": true}}
			stage := s.stage(t)
			asked := stage.Now()
			time.Sleep(test.late)
			stage.Learn([]rate.Request{test.r}, []rate.Decision{test.d}, asked)
			for looks, sleep := range []time.Duration{test.known - 1, 1} {
				if sleep < 0 {
					continue
				}
				time.Sleep(sleep)
				if _, admitted := asks(t.Context(), stage, "k"); admitted != "k" || s.looks != looks {
					t.Errorf("%d: %q, %d looks, want %d", i, admitted, s.looks, looks)
				}
			}
		}
	})
}

// A Stage that is off admits everybody.
func TestNoStage(t *testing.T) {
	t.Parallel()
	var none *newkeys.Stage
	none.LetThrough(rate.Bucket{})
	none.Learn(nil, nil, none.Now())
	if _, admitted := asks(t.Context(), none, "a b"); admitted != "a b" {
		t.Error(fmt.Sprint("admitted ", admitted))
	}
}
