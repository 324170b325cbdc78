package serve

import (
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// What a stranger sends takes time that grows with its length, and no faster: 16 times the bytes take about 16 times
// the CPU, where something quadratic takes 256 times. The CPU of this thread is measured, which other processes do not
// use up.
func TestTimeGrowsWithTheBytesOnly(t *testing.T) {
	t.Parallel()
	s := newServer(t, limits, pglimittest.Memory(), "0123456789abcdef")
	post := func(path, body string, header ...string) func() {
		return func() {
			r := request(http.MethodPost, path, body)
			r.Header.Set("Authorization", "Bearer 0123456789abcdef")
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			if w := s.answers(r); w.Code < 400 || w.Code >= 500 || w.Body.Len() > 4<<10 {
				t.Errorf("%.80s: %d with %d bytes, which begin with %.80s", body, w.Code, w.Body.Len(), w.Body)
			}
		}
	}
	key := func(of httplimit.KeyFunc, value string) func() {
		return func() {
			r := request(http.MethodGet, "/", "")
			r.RemoteAddr = "127.0.0.1:1"
			r.Header.Set("X-Forwarded-For", value)
			_, _ = of(r)
		}
	}
	limit := func(text string) func() { return func() { _, _ = pglimit.ParseLimit(text) } }
	fill := func(text string, n int) string { return strings.Repeat(text, n/len(text)) }
	proxies := httplimit.Proxies{Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	for name, of := range map[string]func(n int) func(){
		"a long name above many elements": func(n int) func() {
			return post("/v1/allow", `{"requests":[{"`+fill("a", n/2)+`":[`+fill("0,", n/2)+`0]}]}`)
		},
		"many elements": func(n int) func() { return post("/v1/allow", `{"requests":[`+fill("0,", n)+`0]}`) },
		"many names": func(n int) func() {
			var names strings.Builder
			for i := range n / 11 {
				fmt.Fprintf(&names, `"%06d":0,`, i)
			}
			return post("/v1/allow", `{"requests":[{`+strings.NewReplacer("0", "a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7", "h", "8", "i", "9", "j").Replace(names.String())+`"z":0}]}`)
		},
		"deep":           func(n int) func() { return post("/v1/allow", `{"requests":[`+fill("[", n/2)+fill("]", n/2)+`]}`) },
		"unknown fields": func(n int) func() { return post("/v1/allow", `{`+fill(`"no":0,`, n)+`"no":0}`) },
		"a long key":     func(n int) func() { return post("/v1/allow", `{"limiter":"api","key":"`+fill("k", n)+`"}`) },
		"a long limiter": func(n int) func() { return post("/v1/allow", `{"limiter":"`+fill(`\u0001`, n)+`","key":"k"}`) },
		"surrogates":     func(n int) func() { return post("/v1/allow", `{"limiter":"api","key":"`+fill(`\ud83d\ude00`, n)+`"}`) },
		"a long decision": func(n int) func() {
			return post("/v1/refund", `{"decision":{"limiter":"api","limit":"`+fill("1", n)+`"},"tokens":1}`)
		},
		"a long number": func(n int) func() { return post("/v1/allow", `{"limiter":"api","key":"k","tokens":`+fill("1", n)+`}`) },
		"a long time":   func(n int) func() { return post("/v1/refund", `{"decision":{"at":"`+fill("1", n)+`"},"tokens":1}`) },
		"a long query":  func(n int) func() { return post("/v1/allow?"+fill("a=1&", min(n, 4*9000)), `{}`) },
		"many parameters of the type": func(n int) func() {
			return post("/v1/allow", `{}`, "Content-Type", "application/json"+fill("; a*1=b", n))
		},
		"a long token":   func(n int) func() { return post("/v1/allow", `{}`, "Authorization", "Bearer "+fill("t", n)) },
		"many addresses": func(n int) func() { return key(httplimit.ClientIP(proxies), fill("127.0.0.1, ", n)) },
		"many commas":    func(n int) func() { return key(httplimit.ClientIP(proxies), fill(", ", n)) },
		"a long header": func(n int) func() {
			return key(httplimit.Join(httplimit.Header("X-Forwarded-For"), httplimit.Constant("k")), fill("%|", n))
		},
		"a hashed header": func(n int) func() {
			return key(httplimit.Hashed(httplimit.Header("X-Forwarded-For"), nil), fill("k", n))
		},
		"bursts":        func(n int) func() { return limit("1/s" + fill(" burst 5", n)) },
		"words":         func(n int) func() { return limit("1/month " + fill("from 1 ", n)) },
		"a long zone":   func(n int) func() { return limit("1/month " + fill("Europe/", n) + "Berlin") },
		"a long period": func(n int) func() { return limit("1/" + fill("1ns", n)) },
	} {
		const short, times = 16 << 10, 16
		small, large := cpuOf(of(short)), cpuOf(of(short*times))
		t.Logf("%-32s %10v %10v: %.1f times", name, small, large, float64(large)/float64(small))
		if large > small*times*8 {
			t.Errorf("%s: %d times the bytes take %v instead of %v", name, times, large, small)
		}
	}
}

// cpuOf is the least CPU time of five runs, on the thread that runs them.
func cpuOf(run func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var took [5]time.Duration
	for i := range took {
		begin := threadTime()
		run()
		took[i] = threadTime() - begin
	}
	return slices.Min(took[:])
}

func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
