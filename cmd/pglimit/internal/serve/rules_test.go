package serve

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// Limiters of the table need no file; one of the file has its rules too.
func TestLimitersOfTheTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		made, err := parse([]byte("limiters: {login: {limit: 2/1m}}"))
		must(t, err)
		made[0].Strategy = memory
		rules := pglimit.FixedLimits(
			pglimit.LimitRule{ID: 1, Limiter: "api", Limit: pglimit.PerHour(10)},
			pglimit.LimitRule{ID: 2, Limiter: "api", Prefix: "bot:", Action: pglimit.ActionDeny},
			pglimit.LimitRule{ID: 3, Limiter: "api", Key: "us", Action: pglimit.ActionAllow},
			pglimit.LimitRule{ID: 4, Limiter: "api", Limit: pglimit.PerHour(1), Action: pglimit.ActionObserve},
			pglimit.LimitRule{ID: 5, Limiter: "login", Key: "ann", Limit: pglimit.PerHour(5)},
			pglimit.LimitRule{ID: 6, Limiter: "some", Key: "k", Limit: pglimit.PerHour(7)},
			pglimit.LimitRule{ID: 7, Limiter: "api", Key: "torn", Unreadable: `limit "5": it must be tokens/period`},
		)
		s, err := New(Config{Limits: made, Rules: rules, Strategy: memory, Pool: memory.Pool(), Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		b := bench{t, s, memory}
		const at = `"at":"2000-01-01T00:00:00Z"`
		b.post("/v1/allow", `{"limiter":"api","key":"k"}`, 200,
			`{"limiter":"api","key":"k","allowed":true,"granted":1,"remaining":9,"retry_after_ms":0,"reset_after_ms":360000,"limit":"10/1h",`+at+`,"source":"database","rule":1,"observed":true}`)
		b.post("/v1/allow", `{"limiter":"api","key":"k"}`, 200,
			`{"limiter":"api","key":"k","allowed":true,"granted":1,"remaining":8,"retry_after_ms":0,"reset_after_ms":720000,"limit":"10/1h",`+at+`,"source":"database","rule":1,"observed":false}`)
		b.post("/v1/peek", `{"limiter":"api","key":"bot:7"}`, 200,
			`{"limiter":"api","key":"bot:7","allowed":false,"granted":0,"retry_after_ms":3600000,`+at+`,"source":"rule","rule":2}`)
		granted := `{"limiter":"api","key":"us","allowed":true,"granted":5000,"retry_after_ms":0,` + at + `,"source":"rule","rule":3}`
		b.post("/v1/allow", `{"limiter":"api","key":"us","tokens":5000}`, 200, granted)
		b.post("/v1/settle", `{"decision":`+granted+`,"tokens":7}`, 200, `{"limiter":"api","key":"us","charged":7}`)
		b.post("/v1/refund", `{"decision":`+granted+`,"tokens":7}`, 200, `{"limiter":"api","key":"us","refunded":7}`)
		for _, where := range []string{"/v1/allow", "/v1/peek"} {
			isProblem(t, b.answers(request(http.MethodPost, where, `{"limiter":"api","key":"k","tokens":11}`)), 400, "tokens", "burst of 10")
			isProblem(t, b.answers(request(http.MethodPost, where, `{"limiter":"api","key":"torn"}`)), 500, "", "row 7 of pglimit.limits cannot be kept: limit", "delete it")
		}
		isProblem(t, b.answers(request(http.MethodPost, "/v1/allow", `{"requests":[{"limiter":"api","key":"k","tokens":11}]}`)), 400, "requests[0].tokens", "burst of 10")
		isProblem(t, b.answers(request(http.MethodPost, "/v1/allow", `{"requests":[{"limiter":"api","key":"new"},{"limiter":"api","key":"torn"}],"all":true}`)), 500, "", "row 7 ")
		isProblem(t, b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"api","key":"k","tokens":11,"limit":"9/1h"}`)), 400, "tokens", "burst of 9")

		// Of a limiter with a file, its limit holds where there is no rule.
		b.post("/v1/allow", `{"requests":[{"limiter":"login","key":"ann"},{"limiter":"api","key":"new","tokens":3},{"limiter":"login","key":"ben"},{"limiter":"some","key":"k"}],"all":true}`, 200,
			`{"allowed":true,"retry_after_ms":0,"decisions":[`+
				`{"limiter":"login","key":"ann","allowed":true,"granted":1,"remaining":4,"retry_after_ms":0,"reset_after_ms":720000,"limit":"5/1h",`+at+`,"source":"database","rule":5},`+
				`{"limiter":"api","key":"new","allowed":true,"granted":3,"remaining":7,"retry_after_ms":0,"reset_after_ms":1080000,"limit":"10/1h",`+at+`,"source":"database","observed":false},`+
				`{"limiter":"login","key":"ben","allowed":true,"granted":1,"remaining":1,"retry_after_ms":0,"reset_after_ms":30000,"limit":"2/1m",`+at+`,"source":"database"},`+
				`{"limiter":"some","key":"k","allowed":true,"granted":1,"remaining":6,"retry_after_ms":0,"reset_after_ms":514286,"limit":"7/1h",`+at+`,"source":"database","rule":6}]}`)

		// Who waits, and resets, does so for the limiter that he names.
		const some = `{"limiter":"some","key":"k"}`
		b.post("/v1/allow", `{"limiter":"some","key":"k","tokens":6,"wait_ms":10}`, 200,
			`{"limiter":"some","key":"k","allowed":true,"granted":6,"remaining":0,"retry_after_ms":3085715,"reset_after_ms":3600001,"limit":"7/1h",`+at+`,"source":"database","rule":6}`)
		if w := b.answers(request(http.MethodPost, "/v1/allow", some)); !strings.Contains(w.Body.String(), `"allowed":false`) {
			t.Error(w.Body)
		}
		b.post("/v1/reset", some, 200, `{"limiter":"some","key":"k","reset":true}`)
		b.post("/v1/allow", some, 200,
			`{"limiter":"some","key":"k","allowed":true,"granted":1,"remaining":6,"retry_after_ms":0,"reset_after_ms":514286,"limit":"7/1h",`+at+`,"source":"database","rule":6}`)

		isProblem(t, b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"some","key":"l"}`)), 404, "limiter", `no limit of it for key "l"`, "pglimit limits set some")
		isProblem(t, b.answers(request(http.MethodPost, "/v1/allow", `{"requests":[{"limiter":"some","key":"l"}],"all":true}`)), 404, "requests[0].limiter", `no limit of it for key "l"`)
		lost := s.table.problem(&pglimit.Request{Limiter: "some", Key: "k"}, &pglimit.Decision{Allowed: true}, nil) // the rule went before it was decided
		if lost == nil || lost.Status != 404 || lost.Field != "limiter" {
			t.Errorf("%+v", lost)
		}
		isProblem(t, b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"other","key":"k"}`)), 404, "limiter", "one of api, login, some")
		b.post("/v1/allow", `{"limiter":"some","key":"own","limit":"3/1h"}`, 200,
			`{"limiter":"some","key":"own","allowed":true,"granted":1,"remaining":2,"retry_after_ms":0,"reset_after_ms":1200000,"limit":"3/1h",`+at+`,"source":"database"}`)
		metrics := b.answers(request(http.MethodGet, "/metrics", "")).Body.String()
		for _, line := range []string{
			`pglimit_ruled_total{action="deny",limiter="(table)",strategy="memory"} 1`, `pglimit_ruled_total{action="allow",limiter="(table)",strategy="memory"} 1`,
			`pglimit_observed_denied_total{limiter="(table)",strategy="memory"} 1`,
		} {
			if !strings.Contains(metrics, line+"\n") {
				t.Errorf("the metrics lack %s:\n%s", line, metrics)
			}
		}
		for _, name := range []string{"api", "some"} { // there may be thousands: nobody named them to this server
			if strings.Contains(metrics, `limiter="`+name+`"`) {
				t.Errorf("the metrics have series of %s:\n%s", name, metrics)
			}
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
