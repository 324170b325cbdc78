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
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// What a stranger sends takes time that grows with its length, and no faster: 16 times the bytes take about 16 times
// the CPU, where something quadratic takes 256 times. The CPU of this thread is measured, which other processes do not
// use up.
func TestTimeGrowsWithTheBytesOnly(t *testing.T) {
	t.Parallel()
	s := newServer(t, limits, pglimittest.Memory(), "0123456789abcdef")
	post := func(body string) func() {
		return func() {
			r := request(http.MethodPost, "/v1/allow", body)
			r.Header.Set("Authorization", "Bearer 0123456789abcdef")
			if w := s.answers(r); w.Code < 400 || w.Code >= 500 || w.Body.Len() > 4<<10 {
				t.Errorf("%.80s: %d with %d bytes, which begin with %.80s", body, w.Code, w.Body.Len(), w.Body)
			}
		}
	}
	key := func(of httplimit.KeyFunc, value string) func() {
		r := request(http.MethodGet, "/", "")
		r.RemoteAddr = "127.0.0.1:1"
		r.Header.Set("X-Forwarded-For", value)
		return func() { _, _ = of(r) }
	}
	proxies := httplimit.Proxies{Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	fill := func(text string, n int) string { return strings.Repeat(text, n/len(text)) }
	for name, of := range map[string]func(n int) func(){
		"a long name above many elements": func(n int) func() {
			return post(`{"requests":[{"` + fill("a", n/2) + `":[` + fill("0,", n/2) + `0]}]}`)
		},
		"many elements": func(n int) func() { return post(`{"requests":[` + fill("0,", n) + `0]}`) },
		"many names": func(n int) func() {
			var names strings.Builder
			for i := range n / 11 {
				fmt.Fprintf(&names, `"%06d":0,`, i)
			}
			return post(`{"requests":[{` + strings.NewReplacer("0", "a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7", "h", "8", "i", "9", "j").Replace(names.String()) + `"z":0}]}`)
		},
		"deep":           func(n int) func() { return post(`{"requests":[` + fill("[", n/2) + fill("]", n/2) + `]}`) },
		"a long key":     func(n int) func() { return post(`{"limiter":"api","key":"` + fill("k", n) + `"}`) },
		"a long limiter": func(n int) func() { return post(`{"limiter":"` + fill(`\u0001`, n) + `","key":"k"}`) },
		"a long limit": func(n int) func() {
			return post(`{"limiter":"api","key":"k","limit":"1/s` + fill(" burst 5", n) + `"}`)
		},
		"many addresses": func(n int) func() { return key(httplimit.ClientIP(proxies), fill("127.0.0.1, ", n)) },
		"many commas":    func(n int) func() { return key(httplimit.ClientIP(proxies), fill(", ", n)) },
		"a long header": func(n int) func() {
			return key(httplimit.Join(httplimit.Header("X-Forwarded-For"), httplimit.Constant("k")), fill("%|", n))
		},
		"surrogates": func(n int) func() { return post(`{"limiter":"api","key":"` + fill(`\ud83d\ude00`, n) + `"}`) },
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
