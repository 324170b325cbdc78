package audit_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	xrate "golang.org/x/time/rate"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// A limiter of another kind keeps its decisions, and they are judged.
func ExampleWriter() {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	bucket := xrate.NewLimiter(8, 4) // 8 per second, 4 at once
	limit := audit.Limit{Limit: rate.PerSecond(8).WithBurst(4)}

	var file bytes.Buffer
	w := audit.NewWriter(&file)
	for i := range 100 {
		at := noon.Add(time.Duration(i) * 25 * time.Millisecond)
		r := audit.Record{Key: "user:42", At: audit.Time(at.UnixNano()), Limit: limit, Tokens: 1}
		if bucket.AllowN(at, 1) {
			r.Granted = 1
		}
		if err := w.Write(r); err != nil {
			fmt.Println(err)
		}
	}
	log, err := audit.ReadLog(&file)
	fmt.Println(log.Check()[0].Report, err)
	// Output: 23 decisions granted 23 tokens; 77 denials: never over, no denial that was not due <nil>
}

// golang.org/x/time/rate is exact, also with its floating point numbers.
func TestXTimeRate(t *testing.T) {
	t.Parallel()
	var log audit.Log
	bucket := xrate.NewLimiter(64, 16)
	limit := audit.Limit{Limit: rate.PerSecond(64).WithBurst(16)}
	at := start
	for i := range int64(20_000) {
		at += (i*7919%13 + 1) * 1_953_125 // eighths of a token, which are exact in binary
		r := audit.Record{Key: "k", At: audit.Time(at), Limit: limit, Tokens: 1 + i%3}
		if bucket.AllowN(time.Unix(0, at), int(r.Tokens)) {
			r.Granted = r.Tokens
		}
		add(t, &log, r)
	}
	if j := log.Check()[0]; !j.OK() || j.Denials < 1000 {
		t.Error(j.Report)
	}
}

// The weighted counter of two windows supposes that the last window's requests were spread evenly over it.
func TestAWeightedWindowCounterIsOver(t *testing.T) {
	t.Parallel()
	const most, window = 100, int64(time.Minute)
	var log audit.Log
	counts := make(map[int64]int64)
	for at := start + window*9/10; at < start+2*window; at += 100 * millisecond {
		now, part := at/window, float64(at%window)/float64(window)
		r := audit.Record{Key: "k", At: audit.Time(at), Limit: audit.Limit{Limit: rate.PerMinute(most)}, Rule: audit.RuleWindow, Tokens: 1}
		if float64(counts[now-1])*(1-part)+float64(counts[now])+1 <= most {
			counts[now]++
			r.Granted = 1
		}
		add(t, &log, r)
	}
	if j := log.Check()[0]; j.Over.Tokens < 20 {
		t.Error(j.Report)
	}
}

func TestLinesThatAreNone(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"key":"k"`:                       "line 2: unexpected end of JSON",
		`{"key":"k","at":1,"limit":"1/s"}`: "line 2: key, limit and at are required, and granted",
		`{"key":"k","at":"yesterday","granted":1,"limit":"1/s"}`:               "line 2: at is \"yesterday\"",
		`{"key":"k","at":1,"granted":1,"limit":"1 per s"}`:                     "line 2: ",
		`{"key":"k","at":1,"granted":-1,"limit":"1/s"}`:                        "line 2: tokens, unit, granted",
		`{"key":"k","at":1,"granted":1,"limit":"1/s","rule":"leaky"}`:          "line 2: rule is \"leaky\"",
		`{"key":"k","at":1,"granted":1,"limit":"1/s","rule":"window"}`:         "line 2: rule is \"window\", and was \"\"",
		`{"key":"k","at":1,"granted":1,"returned":2,"limit":"1/s","unit":"a"}`: "line 2: json:",
	} {
		_, err := audit.ReadLog(strings.NewReader(`{"key":"k","at":1,"granted":1,"limit":"1/s"}` + "\n" + line + "\n"))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestRecords(t *testing.T) {
	t.Parallel()
	line := func(at, tokens, granted int64, more string) string {
		return fmt.Sprintf(`{"key":"k","at":%d,"tokens":%d,"granted":%d%s,"limit":"10/s"}`, at, tokens, granted, more)
	}
	for name, test := range map[string]struct {
		lines              []string
		over, undue, twice int64
	}{
		"a lost answer excuses a denial":     {[]string{line(1, 5, 0, `,"unknown":true`), line(2, 6, 0, "")}, 0, 0, 0},
		"not one that it does not explain":   {[]string{line(1, 5, 0, `,"unknown":true`), line(2, 5, 0, "")}, 0, 1, 0},
		"not one before it":                  {[]string{line(3, 5, 0, `,"unknown":true`), line(2, 6, 0, "")}, 0, 1, 0},
		"and never a grant":                  {[]string{line(1, 5, 0, `,"unknown":true`), line(2, 10, 10, ""), line(3, 1, 1, "")}, 1, 0, 0},
		"unless its ID was granted later":    {[]string{line(1, 5, 0, `,"unknown":true,"id":"a"`), line(2, 5, 5, `,"id":"a"`), line(3, 5, 0, "")}, 0, 1, 0},
		"an ID counts once":                  {[]string{line(1, 6, 6, `,"id":"a"`), line(1, 6, 6, `,"id":"a"`)}, 0, 0, 0},
		"an ID that was charged twice":       {[]string{line(1, 3, 3, `,"id":"a"`), line(2, 3, 3, `,"id":"a"`)}, 0, 0, 3},
		"what was given back may be granted": {[]string{line(1, 10, 10, `,"returned":4`), line(2, 4, 4, ""), line(3, 1, 0, "")}, 0, 0, 0},
		"and no more than that":              {[]string{line(1, 10, 10, `,"returned":4`), line(2, 5, 5, "")}, 1, 0, 0},
		"what was reserved is used later":    {[]string{line(1, 10, 10, ""), line(1, 5, 5, `,"delay_ns":500000000`), line(2, 1, 0, "")}, 0, 0, 0},
		"but not too soon":                   {[]string{line(1, 10, 10, ""), line(1, 5, 5, `,"delay_ns":400000000`)}, 1, 0, 0},
		"the looser of two limits":           {[]string{line(1, 10, 10, ""), `{"key":"k","at":2,"granted":2,"limit":"20/s"}`, line(3, 8, 8, "")}, 0, 0, 0},
		"when reserved tokens are used": {[]string{
			`{"key":"k","at":1,"granted":1,"limit":"20/s"}`, line(3*second, 10, 10, ""), line(3*second, 5, 5, `,"delay_ns":500000000`),
		}, 0, 0, 0},
		"an ID of the year 1970": {[]string{line(0, 10, 10, `,"id":"a"`), line(1, 10, 10, "")}, 10, 0, 0},
		"what is asked of it twice": {[]string{
			line(2, 1, 0, `,"unknown":true`), line(3, 1, 0, `,"unknown":true`), line(4, 1, 0, `,"unknown":true`),
			line(1, 5, 0, `,"unknown":true,"id":"a"`), line(5, 2, 0, ""),
		}, 0, 1, 0},
		"more than anybody has": {[]string{line(1, 10, 10, ""), line(1, 5, 0, `,"unknown":true`), line(2, math.MaxInt64, 0, "")}, 0, 0, 0},
		"while it holds": {[]string{
			`{"key":"k","at":2,"granted":1,"limit":"20/s"}`, line(3*second, 10, 10, ""), line(3*second+1, 1, 1, ""),
		}, 1, 0, 0},
		"and in calendar windows": {[]string{
			`{"key":"k","at":2,"granted":3,"limit":"3/second fixed"}`, `{"key":"k","at":1000000000,"granted":4,"limit":"3/second fixed"}`,
		}, 1, 0, 0},
	} {
		log, err := audit.ReadLog(strings.NewReader(strings.Join(test.lines, "\n")))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		j := log.Check()[0]
		if again := log.Check()[0]; again.String() != j.String() {
			t.Errorf("%s: %v, and asked again %v", name, j, again)
		}
		if j.Over.Tokens != test.over || j.NotDueTotal != test.undue || j.Twice != test.twice || j.OK() != (test.over+test.undue+test.twice == 0) {
			t.Errorf("%s: twice %d, %v", name, j.Twice, j.Report)
		}
	}
}

func TestAnswered(t *testing.T) {
	t.Parallel()
	asked := audit.Record{Key: "k", Tokens: 3, At: 7}
	if r := asked.Answered(rate.Decision{}, errors.New("gone")); !r.Unknown || r.At != 7 || r.Tokens != 3 {
		t.Error(r)
	}
	if r := asked.Answered(rate.Decision{}, rate.ErrNothingTaken); r.Unknown || r.Tokens != 0 {
		t.Error(r)
	}
	d := rate.Decision{Allowed: true, Granted: 3, At: time.Unix(0, start), Delay: 5, Limit: rate.PerSecond(2)}
	if r := asked.Answered(d, nil); r.Granted != 3 || int64(r.At) != start || r.Delay != 5 || r.Limit.Limit != d.Limit {
		t.Error(r)
	}
	for _, free := range []rate.Decision{
		{Allowed: true, Granted: 3, Source: rate.FromRule}, {Allowed: true, Granted: 3, Source: rate.FromFallback}, {Allowed: true, At: time.Unix(9, 0)},
	} {
		if r := asked.Answered(free, nil); r.Tokens != 0 || r.Granted != 0 || r.At != 7 {
			t.Errorf("%+v: %+v", free, r)
		}
	}
}

func add(t *testing.T, log *audit.Log, r audit.Record) {
	t.Helper()
	if err := log.Add(r); err != nil {
		t.Fatal(err)
	}
}
