package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// failing fails requests by their IDs. Each of these is sent by itself.
type failing struct {
	*pglimittest.Strategy
	errs map[string]error
}

func (f failing) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	if err := f.errs[requests[0].ID]; err != nil {
		return nil, err
	}
	return f.Strategy.Take(ctx, session, requests)
}

// Each request gets its own error or decision, whichever limiter's it is.
func TestOfSeveralEachGetsItsOwnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made, err := parse([]byte(limits))
		must(t, err)
		memory := pglimittest.MemoryOn(time.Now)
		strategy := failing{memory, map[string]error{"away": pglimit.ErrUnavailable, "not migrated": pglimit.ErrNotMigrated, "no right": pglimit.ErrPermission}}
		made[0].Strategy, made[2].Strategy = strategy, strategy // api and login, which follows blocks
		s, err := New(Config{Limits: []Limit{made[0], made[2]}, Pool: memory.Pool()})
		must(t, err)
		s.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"c","id":"first"}`))
		asked := []struct{ limiter, key, id, fails string }{
			{"login", "a", "no right", "permission"}, {"api", "b", "", ""}, {"login", "c", "first", "id"}, {"login", "d", "fine", ""},
			{"api", "e", "away", "unavailable"}, {"login", "f", "away", "unavailable"}, {"api", "g", "fine", ""}, {"login", "h", "not migrated", "not_migrated"},
		}
		var body []string
		for _, r := range asked {
			id := ""
			if r.id != "" {
				id = `,"id":"` + r.id + `"`
			}
			body = append(body, `{"limiter":"`+r.limiter+`","key":"`+r.key+`","tokens":2`+id+`}`)
		}
		w := s.answers(request(http.MethodPost, "/v1/allow", `{"requests":[`+strings.Join(body, ",")+`]}`))
		var got struct {
			Decisions []struct {
				Limiter, Key string
				Granted      int64
				Error        *struct{ Cause, Field string }
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || len(got.Decisions) != len(asked) {
			t.Fatalf("%v: %d %s", err, w.Code, w.Body)
		}
		for i, r := range asked {
			d := got.Decisions[i]
			fails := ""
			if d.Error != nil {
				fails = d.Error.Cause + d.Error.Field
			}
			if d.Limiter != r.limiter || d.Key != r.key || !strings.HasSuffix(fails, r.fails) || (fails == "") != (d.Granted == 2) || (fails == "") != (r.fails == "") {
				t.Errorf("request %d, %+v: %+v, fails with %q", i, r, d, fails)
			}
		}
		// If all fail, nothing was taken, and the answer is the failure.
		w = s.answers(request(http.MethodPost, "/v1/allow", `{"requests":[{"limiter":"login","key":"a","id":"away"},{"limiter":"login","key":"b","id":"away"}]}`))
		isProblem(t, w, 503, "", "no decision is known")
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Of requests of which one cannot be decided, none is, wherever it stands. The error names it.
func TestOfSeveralNoneIsDecidedIfOneCannotBe(t *testing.T) {
	inBubble(t, limits+"  ranges: {limit: 1/s, strategy: exclusion_range}", func(b bench) {
		for _, bad := range []struct{ body, field string }{
			{`{"limiter":"ranges","key":"k","limit":"1/s burst 2"}`, ""}, // one that the strategy cannot keep
			{`{"limiter":"api","key":"k","limit":"3000000/1s"}`, "limit"},
			{`{"limiter":"api","key":"k","limit":"1/1s","tokens":2}`, "tokens"},
			{`{"limiter":"api","key":"k","tokens":21}`, "tokens"},
			{`{"limiter":"api","key":""}`, "key"},
			{`{"limiter":"nosuch","key":"k"}`, "limiter"},
			{`{"limiter":"blocks","key":"k","id":"x"}`, "id"},
		} {
			const good = `{"limiter":"login","key":"k"}`
			for i, requests := range [][]string{{bad.body, good, good}, {good, bad.body, good}, {good, good, bad.body}} {
				for _, all := range []string{"", `,"all":true`} {
					w := b.answers(request(http.MethodPost, "/v1/allow", `{"requests":[`+strings.Join(requests, ",")+`]`+all+`}`))
					var p problem
					if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 400 && w.Code != 404 {
						b.Errorf("%s%s: %d %s", bad.body, all, w.Code, w.Body)
					}
					if field := []string{"requests[0].", "requests[1].", "requests[2]."}[i] + bad.field; bad.field != "" && all == "" && p.Field != field {
						b.Errorf("%s: %s, want the field %s", bad.body, w.Body, field)
					}
				}
			}
		}
		for _, limiter := range []string{"login", "api"} {
			w := b.answers(request(http.MethodPost, "/v1/peek", `{"limiter":"`+limiter+`","key":"k"}`))
			if !strings.Contains(w.Body.String(), `"reset_after_ms":0`) {
				b.Errorf("something was taken: %s", w.Body)
			}
		}
	})
}
