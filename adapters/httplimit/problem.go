package httplimit

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
)

// The types of problems that draft-ietf-httpapi-ratelimit-headers registers.
const (
	problemType     = "application/problem+json"
	problems        = "https://iana.org/assignments/http-problem-types#"
	quotaExceeded   = problems + "quota-exceeded"
	reducedCapacity = problems + "temporary-reduced-capacity"
	abnormalUsage   = problems + "abnormal-usage-detected"
)

// Denial of a request that is over the limit.
type Denial struct {
	// RetryAfter is the time until the request could be granted, if nobody else takes tokens. The header field has it
	// in seconds, rounded up.
	RetryAfter time.Duration

	// Decisions that denied: one, unless Config.Requests asked for several limits. Each names its Limiter, Key and
	// Limit.
	Decisions []pglimit.Decision

	problem []byte // for the client
}

// WriteDenied answers with the status 429 and a problem in JSON, of the type quota-exceeded or, if the key is blocked,
// abnormal-usage-detected. It is the default of [Config].Denied. Of the denial that this gets, it writes what the
// middleware found, whatever was changed in it.
func WriteDenied(w http.ResponseWriter, _ *http.Request, denial Denial) {
	if denial.problem == nil { // not of the middleware
		a := answers.Get().(*answer)
		defer a.release()
		a.retryAfter, a.decisions = denial.RetryAfter, append(a.decisions, denial.Decisions...)
		a.nameAll(nil)
		denial.problem = a.problem()
	}
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(denial.problem) // the client has gone
}

// Deny answers a request that a Limiter has denied, like a middleware without [Config].Denied: with the status 429,
// Retry-After, the fields of Draft11 and a problem in JSON. Use it in a handler that asks the Limiter itself:
//
//	d, err := limiter.Allow(r.Context(), key)
//	switch {
//	case err != nil:
//		httplimit.WriteFailed(w, r, err)
//	case !d.Allowed:
//		httplimit.Deny(w, r, d)
//	default:
//		…
//
// For a [pglimit.Group], pass its Denied. A denial by Config.OnError of the Limiter gets 503, as [ErrFallback], because
// nothing is known about the limit.
func Deny(w http.ResponseWriter, r *http.Request, denied pglimit.Decision) {
	if denied.Source == pglimit.FromFallback {
		setRetryAfter(w.Header(), denied.RetryAfter)
		WriteFailed(w, r, ErrFallback)
		return
	}
	a := answers.Get().(*answer)
	defer a.release()
	a.allowed, a.retryAfter, a.decisions = false, denied.RetryAfter, append(a.decisions, denied)
	a.setFields(w.Header(), Draft11, true)
	a.writeDenied(w)
}

// SetFields sets the fields that tell a client about a decision, granted or denied, like a middleware: those of
// Draft11, and for a denial Retry-After and Cache-Control. Use it in a handler that asks the Limiter itself.
func SetFields(h http.Header, d pglimit.Decision) {
	a := answers.Get().(*answer)
	defer a.release()
	a.allowed, a.retryAfter, a.decisions = d.Allowed, d.RetryAfter, append(a.decisions, d)
	a.setFields(h, Draft11, false)
}

// denial of the answer, for a function that may keep it.
func (a *answer) denial() Denial {
	denial := Denial{RetryAfter: a.retryAfter, problem: bytes.Clone(a.problem())}
	for i := range a.decisions {
		if !a.decisions[i].Allowed {
			denial.Decisions = append(denial.Decisions, a.decisions[i])
		}
	}
	return denial
}

// writeDenied is WriteDenied of the denial, without allocations. Content-Type is set already.
func (a *answer) writeDenied(w http.ResponseWriter) {
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(a.problem()) // the client has gone
}

// problem is the body of a denial. It is valid until the answer is released.
func (a *answer) problem() []byte {
	kind, title := quotaExceeded, "Request cannot be satisfied as assigned quota has been exceeded"
	if slices.ContainsFunc(a.decisions, func(d pglimit.Decision) bool { return d.Blocked }) {
		kind, title = abnormalUsage, "Request not satisfied due to detection of abnormal request pattern"
	}
	seconds, unit := wholeSeconds(a.retryAfter), " seconds"
	if seconds == 1 {
		unit = " second"
	}
	from := len(a.text)
	a.appendText(`{"type":"`, kind, `","title":"`, title, `","status":429,"detail":"Try again in `)
	a.text = strconv.AppendInt(a.text, seconds, 10)
	a.appendText(unit, `.","violated-policies":[`)
	for i, first := 0, true; i < len(a.decisions); i++ {
		if a.decisions[i].Allowed {
			continue
		}
		if !first {
			a.text = append(a.text, ',')
		}
		a.text, first = append(a.text, a.name(i)...), false
	}
	a.appendText("]}\n")
	return a.text[from:]
}

func (a *answer) appendText(parts ...string) {
	for _, part := range parts {
		a.text = append(a.text, part...)
	}
}

// clientsFault is the text of an error with the status 400 or 401, without where in the server it comes from.
func clientsFault(err error) string {
	var request *pglimit.RequestError
	if errors.As(err, &request) && !errors.Is(err, ErrBadRequest) { // of the Tokens, see StatusOf
		return "the cost of this request " + request.Why
	}
	var config *admission.ConfigError
	if errors.As(err, &config) {
		err = config.Err
	}
	return ourWords.Replace(err.Error())
}

// ourWords are the texts of the errors that determine the status, wherever they are in a text, and the names of
// packages.
var ourWords = func() *strings.Replacer {
	var words []string
	for _, err := range []error{ErrNoKey, ErrBadRequest, ErrUnauthorized} {
		words = append(words, err.Error()+": ", "", ": "+err.Error(), "", "\n"+err.Error(), "", err.Error()+"\n", "")
	}
	return strings.NewReplacer(append(words, "httplimit: ", "", "pglimit: ", "")...)
}()

// problem of RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// WriteFailed answers with the status of [StatusOf], Cache-Control and a problem in JSON. If the status is 503, its
// type is temporary-reduced-capacity, and Retry-After is a second unless it is already set. It is the default of
// [Config].Failed.
func WriteFailed(w http.ResponseWriter, _ *http.Request, err error) {
	p := problem{Type: "about:blank", Status: StatusOf(err)}
	p.Title = http.StatusText(p.Status)
	switch p.Status {
	case http.StatusServiceUnavailable:
		p.Type, p.Title = reducedCapacity, "Request cannot be satisfied due to temporary server capacity constraints"
		p.Detail = "It is not known at present whether the request is within its limits."
		if errors.Is(err, semaphore.ErrFull) {
			p.Detail = "As many requests as can be served at once are being served."
		}
	case http.StatusInternalServerError:
		p.Detail = "The limits of requests are not set up properly. The server's log says more."
	default:
		p.Detail = clientsFault(err)
	}
	body, _ := json.Marshal(p) //nolint:errchkjson // strings and a number
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable && h.Get("Retry-After") == "" {
		setRetryAfter(h, time.Second)
	}
	h.Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the client has gone
}
