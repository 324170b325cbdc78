package httplimit

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// The fields, in the canonical spelling of http.Header, which is not the draft's.
const (
	policyField    = "Ratelimit-Policy"
	rateField      = "Ratelimit"
	limitField     = "X-Ratelimit-Limit"
	remainingField = "X-Ratelimit-Remaining"
	resetField     = "X-Ratelimit-Reset"
)

// maxInteger of a structured field (RFC 9651, section 3.3.1).
const maxInteger = 999_999_999_999_999

// field of the header whose value is text[from:to] of the answer.
type field struct {
	name     string
	from, to int
}

// setFields tells the client of its limits and, if it is denied, when to come back. problem says that the body is one.
func (a *answer) setFields(h http.Header, headers Headers, problem bool) {
	if admission.Fallback(a.decisions) {
		return
	}
	if headers == Draft11 || !a.allowed {
		a.nameAll(h[policyField])
	}
	switch headers {
	case Draft11:
		a.addDraft11(h)
	case Legacy:
		a.addLegacy(h)
	}
	if !a.allowed {
		a.addInt("Retry-After", wholeSeconds(a.retryAfter))
		a.addText("Cache-Control", "no-store")
	}
	if problem {
		a.addText("Content-Type", problemType)
	}
	a.set(h)
}

// addDraft11 adds a member for each decision to both lists, behind those of middlewares outside.
func (a *answer) addDraft11(h http.Header) {
	a.begin()
	a.appendLines(h[policyField])
	for i := range a.decisions {
		if isLimit(&a.decisions[i]) {
			a.appendPolicy(i)
		}
	}
	a.add(policyField)
	a.begin()
	a.appendLines(h[rateField])
	for i := range a.decisions {
		if isLimit(&a.decisions[i]) && a.knows(&a.decisions[i]) {
			a.appendRate(i)
		}
	}
	a.add(rateField)
}

// isLimit says whether the decision has a limit to show. It has none if a rule of the table pglimit.limits allows or
// denies everything, if Config.Adjust leaves nothing, or if Config.NewKeys lets no new client through.
func isLimit(d *pglimit.Decision) bool {
	return d.Source.HasLimit()
}

// knows says whether the decision tells how many tokens are left. If a group is denied from memory, the buckets that
// were not looked at are unknown.
func (a *answer) knows(d *pglimit.Decision) bool {
	return a.allowed || !d.Allowed || d.Source != pglimit.FromMemory
}

// appendLines of a field that a middleware outside has set.
func (a *answer) appendLines(lines []string) {
	for _, line := range lines {
		if line != "" {
			a.separate()
			a.text = append(a.text, line...)
		}
	}
}

// separate the next member of a list.
func (a *answer) separate() {
	if len(a.text) > a.begun {
		a.text = append(a.text, ", "...)
	}
}

// appendPolicy appends the limit: q is the burst, and w the time in which it refills, or the longest length of a
// calendar window.
func (a *answer) appendPolicy(i int) {
	limit := a.decisions[i].Limit
	window := limit.Window()
	if limit.Calendar != "" {
		window = limit.Period
	}
	a.appendName(i)
	a.appendParameter(";q=", limit.Burst)
	a.appendParameter(";w=", wholeSeconds(window))
}

// appendRate appends what is left: r tokens within the next t seconds. If the bucket has denied or is empty, t says
// when to come back. Otherwise it is the time in which r tokens refill, or until the calendar window ends.
func (a *answer) appendRate(i int) {
	d := &a.decisions[i]
	left, within := d.Remaining, d.Limit.WithBurst(d.Remaining).Window()
	if d.Limit.Calendar != "" {
		within = d.ResetAfter
	}
	if d.Blocked {
		left = 0
	}
	if !d.Allowed || left == 0 {
		within = d.RetryAfter
	}
	a.appendName(i)
	a.appendParameter(";r=", left)
	a.appendParameter(";t=", wholeSeconds(within))
}

func (a *answer) appendParameter(name string, n int64) {
	a.text = append(a.text, name...)
	a.text = strconv.AppendInt(a.text, min(n, maxInteger), 10)
}

// addLegacy shows the tightest limit: the one that denied, or the one with the fewest tokens left.
func (a *answer) addLegacy(h http.Header) {
	d := a.tightest()
	if d == nil {
		return
	}
	if outside := h[remainingField]; a.allowed && len(outside) > 0 {
		left, err := strconv.ParseInt(outside[0], 10, 64)
		if err == nil && left <= d.Remaining {
			return
		}
	}
	left := d.Remaining
	if d.Blocked {
		left = 0
	}
	reset := d.At.Add(max(d.ResetAfter, d.BlockedFor) + time.Second - 1)
	a.addInt(limitField, d.Limit.Burst)
	a.addInt(remainingField, left)
	a.addInt(resetField, reset.Unix())
}

// tightest limit; nil: there is none.
func (a *answer) tightest() (tightest *pglimit.Decision) {
	for i := range a.decisions {
		d := &a.decisions[i]
		switch {
		case !isLimit(d):
		case tightest == nil, a.allowed && d.Remaining < tightest.Remaining,
			!a.allowed && !d.Allowed && d.RetryAfter > tightest.RetryAfter:
			tightest = d
		}
	}
	return tightest
}

// begin a value at the end of the text; add ends it.
func (a *answer) begin() { a.begun = len(a.text) }

func (a *answer) add(name string) {
	if a.begun == len(a.text) { // an empty list
		return
	}
	a.fields = append(a.fields, field{name, a.begun, len(a.text)})
}

func (a *answer) addText(name, value string) {
	a.begin()
	a.appendText(value)
	a.add(name)
}

func (a *answer) addInt(name string, n int64) {
	a.begin()
	a.text = strconv.AppendInt(a.text, n, 10)
	a.add(name)
}

// set the fields that were added: one allocation for the text, and one for the values.
func (a *answer) set(h http.Header) {
	if len(a.fields) == 0 {
		return
	}
	text, values := string(a.text), make([]string, len(a.fields))
	for i, f := range a.fields {
		values[i] = text[f.from:f.to]
		h[f.name] = values[i : i+1 : i+1] // so that Add copies it
	}
}

// span of the answer's text.
type span struct{ from, to int }

// nameAll writes the names of the policies, as strings of a structured field. It is the limiter's
// name, followed by a number if the lists have that name already: the same limiter outside,
// or for several keys.
func (a *answer) nameAll(outside []string) {
	for i := range a.decisions {
		from := len(a.text)
		a.text = appendQuoted(a.text, a.decisions[i].Limiter)
		end := len(a.text) - 1 // before the quote
		for n := int64(2); a.taken(a.text[from:], outside); n++ {
			a.text = append(strconv.AppendInt(append(a.text[:end], '-'), n, 10), '"')
		}
		a.names = append(a.names, span{from, len(a.text)})
	}
}

// taken says whether another policy has that name.
func (a *answer) taken(name []byte, outside []string) bool {
	for _, other := range a.names {
		if bytes.Equal(a.text[other.from:other.to], name) {
			return true
		}
	}
	for _, line := range outside {
		if strings.Contains(line, string(name)+";") {
			return true
		}
	}
	return false
}

// name of the policy of a decision, quoted.
func (a *answer) name(i int) []byte { return a.text[a.names[i].from:a.names[i].to] }

func (a *answer) appendName(i int) {
	a.separate()
	a.text = append(a.text, a.name(i)...)
}

// appendQuoted appends text as a string of a structured field (RFC 9651, section 3.3.3), which is one
// of JSON too. These hold printable ASCII only: other bytes are written as in a URL.
func appendQuoted(b []byte, text string) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20 || c > 0x7e || c == '%':
			b = append(b, '%', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

func setRetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(wholeSeconds(d), 10))
}

// wholeSeconds rounds up, to at least one.
func wholeSeconds(d time.Duration) int64 {
	return int64(max(0, d-1)/time.Second) + 1
}
