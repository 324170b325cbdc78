package serve

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func (b bench) remains(key, want string) {
	b.Helper()
	w := b.answers(request(http.MethodPost, "/v1/peek", `{"limiter":"login","key":"`+key+`"}`))
	if !strings.Contains(w.Body.String(), `"remaining":`+want+`,`) {
		b.Errorf("not %s remain, but %s", want, w.Body)
	}
}

func TestResetFillsTheBucket(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ann","tokens":2}`))
		b.remains("ann", "0")
		b.post("/v1/reset", `{"limiter":"login","key":"ann"}`, 200, `{"limiter":"login","key":"ann","reset":true}`)
		b.remains("ann", "2")
	})
}

func TestRefundGivesBackAndSettleCharges(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		granted := strings.TrimSpace(b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ann","tokens":2}`)).Body.String())
		b.post("/v1/refund", `{"decision":`+granted+`,"tokens":1}`, 200, `{"limiter":"login","key":"ann","refunded":1}`)
		b.remains("ann", "1")

		granted = strings.TrimSpace(b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ben","tokens":1}`)).Body.String())
		b.post("/v1/settle", `{"decision":`+granted+`,"tokens":2}`, 200, `{"limiter":"login","key":"ben","charged":2}`)
		b.remains("ben", "0")
		granted = strings.TrimSpace(b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"cat","tokens":2}`)).Body.String())
		b.post("/v1/settle", `{"decision":`+granted+`,"tokens":0}`, 200, `{"limiter":"login","key":"cat","charged":0}`)
		b.remains("cat", "2")

		// A bucket that owes a burst is charged no more.
		var each [2]string
		for i := range each {
			each[i] = strings.TrimSpace(b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"dan"}`)).Body.String())
		}
		b.post("/v1/settle", `{"decision":`+each[0]+`,"tokens":3}`, 200, `{"limiter":"login","key":"dan","charged":3}`)
		b.post("/v1/settle", `{"decision":`+each[1]+`,"tokens":3}`, 200, `{"limiter":"login","key":"dan","charged":1}`)
	})
}

// A decision after a wait was made long before its tokens were due.
func TestRefundAfterAWait(t *testing.T) {
	inBubble(t, limits, func(b bench) {
		b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ann","tokens":2}`))
		waited := strings.TrimSpace(b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"ann","wait_ms":40000}`)).Body.String())
		b.post("/v1/refund", `{"decision":`+waited+`,"tokens":1}`, 200, `{"limiter":"login","key":"ann","refunded":1}`)
		time.Sleep(time.Second) // more than what rounding and the wait itself have cost
		b.remains("ann", "1")
	})
}

// A group is remembered by the limiter that asked for it, which is not that of the bucket.
func TestGroupsNoticeWhatCameBack(t *testing.T) {
	const group = `{"requests":[{"limiter":"api","key":"k"},{"limiter":"login","key":"k","tokens":2}],"all":true}`
	for name, correct := range map[string]func(b bench, granted string){
		"reset": func(b bench, _ string) {
			b.answers(request(http.MethodPost, "/v1/reset", `{"limiter":"login","key":"k"}`))
		},
		"refund": func(b bench, d string) {
			b.answers(request(http.MethodPost, "/v1/refund", `{"decision":`+d+`,"tokens":2}`))
		},
		"settle": func(b bench, d string) {
			b.answers(request(http.MethodPost, "/v1/settle", `{"decision":`+d+`,"tokens":0}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, limits, func(b bench) {
				granted := b.answers(request(http.MethodPost, "/v1/allow", `{"limiter":"login","key":"k","tokens":2}`)).Body.String()
				for _, source := range []string{"database", "memory"} {
					w := b.answers(request(http.MethodPost, "/v1/allow", group))
					if text := w.Body.String(); !strings.HasPrefix(text, `{"allowed":false`) || !strings.Contains(text, source) {
						b.Errorf("not denied from %s: %s", source, text)
					}
				}
				correct(b, granted)
				if w := b.answers(request(http.MethodPost, "/v1/allow", group)); !strings.HasPrefix(w.Body.String(), `{"allowed":true`) {
					b.Errorf("the tokens are back: %s", w.Body)
				}
			})
		})
	}
}
