package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// Record is a decision of any limiter, as a line of JSON has it:
//
//	{"key":"user:42","at":"2026-05-04T12:00:00.25Z","tokens":3,"granted":3,"limit":"100/1m burst 20"}
//
// Key, At and Limit are required, and so is Granted, unless the outcome is Unknown. Other fields of the line are
// ignored.
type Record struct {
	Limiter string `json:"limiter,omitempty"` // a bucket is a Limiter and a Key
	Key     string `json:"key"`
	Limit   Limit  `json:"limit"` // as rate.ParseLimit reads it

	// Rule by which the bucket is judged. Empty: never more than Burst + Tokens × T / Period in any span of T.
	// RuleWindow: never more than Burst in any Limit.Window.
	Rule string `json:"rule,omitempty"`

	// At is the time of the decision by the limiter's clock; if Unknown, the time of the question. In JSON it is RFC
	// 3339, or a number of nanoseconds since 1970.
	At Time `json:"at"`

	// Tokens that were wanted, in whole multiples of Unit, and Granted of them. Tokens is 1 if it is left out, and
	// Unit is Tokens.
	Tokens  int64 `json:"tokens"`
	Unit    int64 `json:"unit,omitempty"`
	Granted int64 `json:"granted"`

	// Delay of tokens that were reserved: they may be used so many nanoseconds after At.
	Delay time.Duration `json:"delay_ns,omitempty"`

	// Returned of the tokens that were granted were given back later, and may be granted again.
	Returned int64 `json:"returned,omitempty"`

	// ID of a request that may be sent again, and is charged once. All its grants have the same At.
	ID string `json:"id,omitempty"`

	Contended bool `json:"contended,omitempty"` // excuses a denial, see [rate.Decision]
	Unknown   bool `json:"unknown,omitempty"`   // the answer was lost: up to Tokens may have been taken, at At or later
	Durable   bool `json:"durable,omitempty"`   // a grant must survive a crash; not judged here
}

// RuleWindow is the [Record].Rule of a sliding window.
const RuleWindow = "window"

// Time in nanoseconds since 1970.
type Time int64

// MarshalJSON writes RFC 3339.
func (t Time) MarshalJSON() ([]byte, error) {
	return time.Unix(0, int64(t)).UTC().AppendFormat(nil, `"`+time.RFC3339Nano+`"`), nil
}

// UnmarshalJSON reads RFC 3339 or a number.
func (t *Time) UnmarshalJSON(text []byte) error {
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		*t = Time(n)
		return nil
	}
	at, err := time.Parse(`"`+time.RFC3339Nano+`"`, string(text))
	if err != nil {
		return fmt.Errorf("at is %s: it must be a time such as \"2026-05-04T12:00:00.25Z\", or nanoseconds since 1970", text)
	}
	*t = Time(at.UnixNano())
	return nil
}

// Limit is a [rate.Limit] that is text in JSON.
type Limit struct{ rate.Limit }

// MarshalText writes what [rate.ParseLimit] reads.
func (l Limit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads it.
func (l *Limit) UnmarshalText(text []byte) (err error) {
	l.Limit, err = rate.ParseLimit(string(text))
	return err
}

// Answered is the record with an answer: with the decision, or Unknown after an error. It asks for nothing if nothing
// was taken and nothing denied: so says [rate.ErrNothingTaken], and so it is of what a rule or a fallback answers.
func (r Record) Answered(d rate.Decision, err error) Record {
	switch {
	case errors.Is(err, rate.ErrNothingTaken):
		r.Tokens = 0
	case err != nil:
		r.Unknown = true
	case d.Source.IsFree(), d.Allowed && d.Granted == 0:
		// Nothing was charged, Postgres was not asked, or it had the tokens and others of its group fell.
		r.Tokens, r.Granted = 0, 0
	default:
		e := FromDecision(r.Tokens, r.Unit, d)
		r.At, r.Tokens, r.Granted, r.Contended, r.Delay = Time(e.At), e.Wanted, e.Granted, e.Contended, d.Delay
		r.Limit.Limit = cmp.Or(d.Limit, r.Limit.Limit)
	}
	return r
}

// Writer writes records as lines of JSON. It is safe for concurrent use.
type Writer struct {
	mu sync.Mutex
	to *json.Encoder
}

// NewWriter returns a Writer. Each record is one Write.
func NewWriter(to io.Writer) *Writer { return &Writer{to: json.NewEncoder(to)} }

// Write a record.
func (w *Writer) Write(r Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Encode(r)
}

// Log is the records of any number of limiters, in any order. The zero value is an empty one.
type Log struct{ buckets map[rate.Bucket]*logged }

// logged are the records of one bucket.
type logged struct {
	rule   string
	used   History // when the tokens may be used, without those that were given back
	taken  History // when they were taken
	limits map[rate.Limit]*Held
	ids    map[string]*byID
	twice  int64
}

// byID is a request that may have been sent several times.
type byID struct {
	granted bool
	at      Time // of its grant
	unknown []Event
}

// ReadLog reads lines of JSON. An error names the line.
func ReadLog(from io.Reader) (*Log, error) {
	var log Log
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var given struct {
			Key, Limit *string
			At         *Time
			Granted    *int64
			Unknown    bool
		}
		r := Record{Tokens: 1}
		err := json.Unmarshal(line, &given)
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err == nil && (given.Key == nil || given.Limit == nil || given.At == nil || given.Granted == nil && !given.Unknown) {
			err = errors.New("key, limit and at are required, and granted unless unknown is true")
		}
		if err == nil {
			err = log.Add(r)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return &log, lines.Err()
}

// Add a record. The error says what is wrong with it.
func (l *Log) Add(r Record) error {
	if err := r.Limit.Validate(); err != nil {
		return err
	}
	if r.Rule != "" && r.Rule != RuleWindow {
		return fmt.Errorf("rule is %q: it must be %q, or left out", r.Rule, RuleWindow)
	}
	if r.At > math.MaxInt64/2 || r.Delay > math.MaxInt64/4 {
		return errors.New("at and delay_ns must be nanoseconds within a hundred years")
	}
	if r.Tokens < 0 || r.Unit < 0 || r.Granted < 0 || r.Returned < 0 || r.Returned > r.Granted || r.Delay < 0 {
		return errors.New("tokens, unit, granted, returned and delay_ns must not be negative, nor returned more than granted")
	}
	name := rate.Bucket{Limiter: r.Limiter, Key: r.Key}
	b := l.buckets[name]
	if b == nil {
		if l.buckets == nil {
			l.buckets = make(map[rate.Bucket]*logged)
		}
		b = &logged{rule: r.Rule, limits: make(map[rate.Limit]*Held), ids: make(map[string]*byID)}
		l.buckets[name] = b
	}
	if b.rule != r.Rule {
		return fmt.Errorf("rule is %q, and was %q for the same bucket", r.Rule, b.rule)
	}
	b.add(r)
	return nil
}

func (b *logged) add(r Record) {
	at := int64(r.At)
	held := b.limits[r.Limit.Limit]
	if held == nil {
		held = &Held{Limit: r.Limit.Limit, From: at, To: at}
		b.limits[r.Limit.Limit] = held
	}
	held.From, held.To = min(held.From, at), max(held.To, at+int64(r.Delay))
	if r.Unknown { // it may bind later
		held.To = math.MaxInt64
	}
	e := Event{At: at, Wanted: r.Tokens, Unit: cmp.Or(r.Unit, r.Tokens), Granted: r.Granted, Contended: r.Contended, Unknown: r.Unknown}
	if r.ID != "" && (r.Unknown || r.Granted > 0) {
		once := b.ids[r.ID]
		if once == nil {
			once = new(byID)
			b.ids[r.ID] = once
		}
		switch {
		case r.Unknown:
			once.unknown = append(once.unknown, e)
			return
		case once.granted && once.at == r.At:
			return
		case once.granted:
			b.twice += r.Granted
		}
		once.granted, once.at = true, r.At
	}
	b.taken.Add(e)
	if !e.Unknown {
		e.At, e.Granted = at+int64(r.Delay), r.Granted-r.Returned
		b.used.Add(e)
	}
}

// Judged is what was found about a limiter.
type Judged struct {
	Limiter string
	Keys    int

	// Twice counts tokens of requests with an ID that were charged again.
	Twice int64

	Report
}

// OK says that nothing was found.
func (j Judged) OK() bool { return j.Report.OK() && j.Twice == 0 }

// Worst says in words what was found: the worst of each kind. It is empty if nothing was.
func (j Judged) Worst() (found []string) {
	if j.Over.Tokens > 0 {
		found = append(found, "over: "+j.Over.String())
	}
	if j.Twice > 0 {
		found = append(found, fmt.Sprintf("twice: %d tokens charged again for one ID", j.Twice))
	}
	if j.NotDueTotal > 0 {
		found = append(found, "undue: "+j.NotDue[0].String())
	}
	return found
}

// Check judges each limiter, sorted by name. It takes time n log n. Of a bucket that had several limits, the grants are
// judged by the loosest of those that held in each span, each from its first record to its last, and denials are not.
func (l *Log) Check() []Judged {
	found := make(map[string]*Judged)
	for name, b := range l.buckets {
		j := found[name.Limiter]
		if j == nil {
			j = &Judged{Limiter: name.Limiter}
			found[name.Limiter] = j
		}
		j.Keys++
		report, twice := b.check()
		j.Add(report.named(name.Key))
		j.Twice += twice
	}
	var all []Judged
	for _, j := range found {
		all = append(all, *j)
	}
	slices.SortFunc(all, func(a, b Judged) int { return cmp.Compare(a.Limiter, b.Limiter) })
	return all
}

func (b *logged) check() (Report, int64) {
	taken := b.taken
	taken.unknown = slices.Clone(taken.unknown)
	for _, once := range b.ids {
		if !once.granted { // else it is known
			for _, e := range once.unknown {
				taken.Add(e)
			}
		}
	}
	var rule rate.Rule
	if b.rule == RuleWindow {
		rule = window.Rule{}
	}
	var held []Held
	var limits []rate.Limit
	for limit, h := range b.limits {
		held, limits = append(held, *h), append(limits, limit)
	}
	report := taken.Check(rule, limits[0], limits[1:]...)
	if report.Err != nil {
		return report, 0
	}
	report.Over = b.used.Check(rule, limits[0], limits[1:]...).Over
	if len(held) > 1 && b.rule == "" && limits[0].Calendar == "" {
		report.Over = b.used.CheckHeld(held...)
	}
	return report, b.twice
}
