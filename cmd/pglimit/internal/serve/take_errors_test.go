package serve

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func TestWhatIsWrongWithARequestIsSaidByField(t *testing.T) {
	t.Parallel()
	s := newServer(t, limits+"  nowait: {limit: 10/s, strategy: for_update_nowait}\n  range: {limit: 1/s, strategy: exclusion_range}\n  upsert: {limit: 10/s, strategy: upsert}\n  month: {limit: 10/month}", pglimittest.Memory())
	long := strings.Repeat("k", pglimit.MaxKeyBytes+1)
	for _, test := range []struct {
		path, body string
		status     int
		field      string
		words      string
	}{
		{"/v1/allow", `{"key":"k"}`, 400, "limiter", "one of api, blocks, login, month, nowait, range, upsert"},
		{"/v1/allow", `{"limiter":"nosuch","key":"k"}`, 404, "limiter", `"nosuch"`},
		{"/v1/allow", `{"limiter":"api"}`, 400, "key", "empty"},
		{"/v1/allow", `{"limiter":"api","key":"` + long + `"}`, 400, "key", "1025 bytes"},
		{"/v1/allow", `{"limiter":"api","key":7}`, 400, "key", "must be a string"},
		{"/v1/allow", `{"limiter":"api","key":"k","tokens":0}`, 400, "tokens", "at least 1"},
		{"/v1/allow", `{"limiter":"api","key":"k","tokens":1.5}`, 400, "tokens", "whole number"},
		{"/v1/allow", `{"limiter":"api","key":"k","tokens":21}`, 400, "tokens", "burst of 20"},
		{"/v1/allow", `{"limiter":"api","key":"k","limit":"ten"}`, 400, "limit", `"ten"`},
		{"/v1/allow", `{"limiter":"api","key":"k","limit":"1/0s"}`, 400, "limit", "period is 0s"},
		{"/v1/allow", `{"limiter":"api","key":"k","id":""}`, 400, "id", "is empty: name the request, or leave it out"},
		{"/v1/allow", `{"limiter":"upsert","key":"k","id":"x"}`, 400, "id", "token_bucket"},
		{"/v1/allow", `{"limiter":"blocks","key":"k","id":"x"}`, 400, "id", "blocks keys, and takes none: leave it out"},
		{"/v1/peek", `{"limiter":"api","key":"k","id":"x"}`, 400, "id", "/v1/allow only"},
		{"/v1/allow", `{"limiter":"api","key":"k","wait_ms":60001}`, 400, "wait_ms", "from 0 to 60000"},
		{"/v1/allow", `{"limiter":"api","key":"k","wait_ms":1,"id":"x"}`, 400, "wait_ms", "goes without"},
		{"/v1/peek", `{"limiter":"api","key":"k","wait_ms":1}`, 400, "wait_ms", "does not wait"},
		{"/v1/allow", `{"limiter":"blocks","key":"k","wait_ms":1}`, 400, "wait_ms", "ask again after retry_after_ms"},
		{"/v1/allow", `{"limiter":"nowait","key":"k","wait_ms":1}`, 400, "wait_ms", "token_bucket, upsert or warm_up"},
		{"/v1/allow", `{"limiter":"month","key":"k","wait_ms":1}`, 400, "wait_ms", "no window of the calendar"},
		{"/v1/settle", `{"decision":{"limiter":"blocks","key":"k","granted":1,"limit":"1/1m","at":"2000-01-01T00:00:00Z"},"tokens":2}`, 400, "tokens", "settle for less"},
		{"/v1/allow", `{"limiter":"api","key":"k","all":true}`, 400, "all", "goes with requests"},
		{"/v1/peek", `{"requests":[{"limiter":"api","key":"k"}],"all":true}`, 400, "all", "/v1/allow only"},
		{"/v1/allow", `{"limiter":"api","requests":[{"limiter":"api","key":"k"}]}`, 400, "requests", "goes alone"},
		{"/v1/allow", `{"requests":[]}`, 400, "requests", "empty"},
		{"/v1/allow", `{"requests":[` + strings.Repeat(`{},`, 1000) + `{}]}`, 400, "requests", "at most 1000"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k"},{"limiter":"api"}]}`, 400, "requests[1].key", "empty"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k"},{"limiter":"upsert","key":"k"}],"all":true}`, 400, "requests[1].limiter", "one strategy"},
		{"/v1/allow", `{"requests":[{"limiter":"blocks","key":"k"}],"all":true}`, 400, "requests[0].limiter", "ask it first"},
		{"/v1/allow", `{"requests":[{"limiter":"upsert","key":"k"}],"all":true}`, 400, "", "cannot take all or nothing from several buckets (token_bucket can)"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k"},{"limiter":"range","key":"k","limit":"2/s"}]}`, 400, "requests[1].limit", "burst is 2"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k"},{"limiter":"api","key":"l","tokens":"2"}]}`, 400, "requests[1].tokens", "must be a whole number"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k"},{"limiter":"api","key":"l","tokns":2}]}`, 400, "requests[1].tokns", "not a field"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k"},7]}`, 400, "requests[1]", "must be an object"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k","id":"x"}],"all":true}`, 400, "requests[0].id", "by itself"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"k"},{"limiter":"api","key":"k"}],"all":true}`, 400, "requests[1].key", "asked for twice"},
		{"/v1/allow", `{"limiter":"api","key":"k","TOKENS":1}`, 400, "TOKENS", "not a field"},
		{"/v1/allow", `{"limiter":"api","\u212aey":"k"}`, 400, "\u212aey", "not a field"}, // a sign that folds to k
		{"/v1/allow", `{"limiter":"api","key":"a","key":"b"}`, 400, "key", "twice"},
		{"/v1/allow", `{"limiter":"api","key":"a","k\u0065y":"b"}`, 400, "key", "twice"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"a","tokens":4}],"requests":[{"limiter":"api","key":"b"}]}`, 400, "requests", "twice"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":"a"},{"limiter":"api","key":"a","key":"b"}]}`, 400, "requests[1].key", "twice"},
		{"/v1/allow", `{"limiter":"api","key":"k","wait_ms":1,"limit":"1/s"}`, 400, "wait_ms", "without requests, id and limit"},
		{"/v1/allow", `{"requests":[{"limiter":"api","key":[]}]}`, 400, "requests[0].key", "must be a string"},
		{"/v1/allow", `{"requests":[[{"limiter":"api"}]]}`, 400, "requests[0]", "must be an object"},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":1,"granted":5},"tokens":1}`, 400, "decision.granted", "twice"},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":"1"},"tokens":1}`, 400, "decision.granted", "whole number"},
		{"/v1/refund", `{"decision":{"limiter":"api","kye":"k"},"tokens":1}`, 400, "decision.kye", "not a field"},
		{"/v1/refund", `{"decision":[],"tokens":1}`, 400, "decision", "must be an object"},
		{"/v1/allow?denied=403", `{"limiter":"api","key":"k"}`, 400, "", "one of [200 429]"},
		{"/v1/allow?denied=429&denied=429", `{"limiter":"api","key":"k"}`, 400, "", "takes only denied there, once"},
		{"/v1/allow?Denied=429", `{"limiter":"api","key":"k"}`, 400, "", `has "Denied": /v1/allow takes only denied there`},
		{"/v1/allow?denied=429;x", `{"limiter":"api","key":"k"}`, 400, "", "not well formed"},
		{"/v1/peek?denied=429", `{"limiter":"api","key":"k"}`, 400, "", `has "denied": /v1/peek takes no parameters`},
		{"/v1/allow", `{"limiter":"api","key":"\ud800"}`, 400, "", "surrogate"},
		{"/v1/allow", `{"limiter":"api","key":"\\\\ufffd\\\ud800"}`, 400, "", "surrogate"},
		{"/v1/allow", "{\"limiter\":\"api\",\"key\":\"\xff\"}", 400, "", "UTF-8"},
		{"/v1/allow", `{"limiter":"api",`, 400, "", "not JSON"},
		{"/v1/allow", `{"limiter" "api"}`, 400, "", "at byte 11"},
		{"/v1/allow", ``, 400, "", "unexpected EOF"},
		{"/v1/allow", `[]`, 400, "", "must be a JSON object"},
		{"/v1/allow", `{} {}`, 400, "", "after top-level value"},
		{"/v1/reset", `{"limiter":"api"}`, 400, "key", "empty"},
		{"/v1/reset", `{"limiter":"api","key":"k","tokens":1}`, 400, "tokens", "not a field"},
		{"/v1/refund", `{"tokens":1}`, 400, "decision", "as it was answered"},
		{"/v1/refund", `{"decision":{}}`, 400, "tokens", "is missing"},
		{"/v1/refund", `{"decision":{"limiter":"no"},"tokens":1}`, 404, "decision.limiter", "one of"},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":1},"tokens":1}`, 400, "decision.limit", `""`},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":1,"limit":"1/s"},"tokens":1}`, 400, "decision.at", "is missing"},
		{"/v1/settle", `{"decision":{"limiter":"api","key":"k","granted":1,"limit":"1/s","source":"fallback"},"tokens":1}`, 400, "decision.source", "is fallback"},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":1,"limit":"1/s","at":"2000-01-01T00:00:00Z"},"tokens":2}`, 400, "tokens", "granted 1"},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":6,"limit":"5/s","at":"2000-01-01T00:00:00Z"},"tokens":1}`, 400, "decision.granted", "is 6: of a grant under 5/1s it must be from 1 to 5"},
		{"/v1/settle", `{"decision":{"limiter":"api","key":"k","granted":0,"limit":"5/s","at":"2000-01-01T00:00:00Z"},"tokens":1}`, 400, "decision.granted", "is 0"},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":1,"limit":"5/s","at":"1969-12-31T23:59:59Z"},"tokens":1}`, 400, "decision.at", "is 1969-12-31T23:59:59Z: it must be in the years 1970 to 2261"},
		{"/v1/refund", `{"decision":{"limiter":"api","key":"k","granted":1,"limit":"5/s","at":"2000-01-01T00:00:00Z","waited_ms":60001},"tokens":1}`, 400, "decision.waited_ms", "is 60001: it must be from 0 to 60000"},
	} {
		w := s.answers(request(http.MethodPost, test.path, test.body))
		isProblem(t, w, test.status, test.field, test.words)
		for _, ours := range []string{"Config", "Limiter", "Request", "Decision", "Allow", "DoAll", "pglimit:", "strategies.", "unsupported"} {
			if strings.Contains(strings.Replace(w.Body.String(), "Bad Request", "", 1), ours) {
				t.Errorf("it speaks of %s, which is Go's", ours)
			}
		}
		if t.Failed() {
			t.Fatalf("%s %s\n%s", test.path, test.body, w.Body)
		}
	}
}
