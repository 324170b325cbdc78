package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxListed is how many denials a [Report] lists.
const MaxListed = 10

// Report is the result of a check of one bucket or many. The zero value is the report
// of no decisions at all.
type Report struct {
	// Grants counts decisions that granted something, Denials the others. Contended counts
	// the denials that were excused as contended.
	Grants, Denials, Contended int64

	// Unknown counts calls whose answer was lost.
	Unknown int64

	// Granted is the total of granted tokens.
	Granted int64

	// Over is the worst over-admission of any bucket; its Tokens are 0 if there
	// was none.
	Over Over

	// NotDue lists denials that were not due, the largest Late first, at most MaxListed.
	// A partial grant counts as a denial of the next unit. NotDueTotal counts all.
	NotDue      []Denial
	NotDueTotal int64

	// Err is a *pglimit.LimitError if a limit is not valid. Then nothing was checked.
	Err error
}

// Over is a span of time in which more was granted than the limit allows.
type Over struct {
	// Bucket as it was named to [Histories].
	Bucket string

	// Tokens granted beyond the limit, rounded up: 1 means a whole token or any part of
	// one.
	Tokens int64

	// Granted tokens from the grant at From to the grant at To, both included. If they are
	// 112 and Tokens is 12, the limit allows 100 in such a span.
	Granted  int64
	From, To time.Time
}

// Denial is a denial that was not due: the tokens were there.
type Denial struct {
	// Bucket as it was named to [Histories].
	Bucket string

	// At is the database's time of the decision.
	At time.Time

	// Unit is how many tokens were wanted and not granted; Free is how many whole tokens
	// were there.
	Unit, Free int64

	// Late is how long the tokens had been there, at least. With 4 tokens per second, if
	// one was denied 0.4 s after the last grant emptied the bucket: 150 ms.
	Late time.Duration
}

// OK says that the limit was kept: nothing over, no denial that was not due.
func (r Report) OK() bool {
	return r.Err == nil && r.Over.Tokens == 0 && r.NotDueTotal == 0
}

// Add adds the report of other buckets.
func (r *Report) Add(other Report) {
	r.Grants += other.Grants
	r.Denials += other.Denials
	r.Contended += other.Contended
	r.Unknown += other.Unknown
	r.Granted = addSaturated(r.Granted, other.Granted)
	if other.Over.worseThan(r.Over) {
		r.Over = other.Over
	}
	total := r.NotDueTotal + other.NotDueTotal
	r.NotDue = slices.Clone(r.NotDue) // a copy of this report keeps its list
	for _, d := range other.NotDue {
		r.addNotDue(d)
	}
	r.NotDueTotal = total // includes denials that other does not list
	r.Err = cmp.Or(r.Err, other.Err)
}

// String says in words what was found, in one line for each kind of fault.
func (r Report) String() string {
	if r.Err != nil {
		return fmt.Sprintf("not checked: %v", r.Err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s granted %s; %s", count(r.Grants, "decision"), count(r.Granted, "token"), count(r.Denials, "denial"))
	if r.Contended > 0 {
		fmt.Fprintf(&text, ", %d contended", r.Contended)
	}
	if r.OK() {
		text.WriteString(": never over, no denial that was not due")
		return text.String()
	}
	if r.Over.Tokens > 0 {
		fmt.Fprintf(&text, "\nover: %v", r.Over)
	}
	if r.NotDueTotal > 0 {
		fmt.Fprintf(&text, "\nnot due: %s, such as", count(r.NotDueTotal, "denial"))
		for _, d := range r.NotDue {
			fmt.Fprintf(&text, "\n  %v", d)
		}
	}
	return text.String()
}

// String is "12 tokens too many: 112 granted in 1.5s, from … to … (bucket "a")".
func (o Over) String() string {
	return fmt.Sprintf("%s too many: %d granted in %v, from %s to %s%s",
		count(o.Tokens, "token"), o.Granted, o.To.Sub(o.From), clock(o.From), clock(o.To), inBucket(o.Bucket))
}

// String is "1 token denied at …, 3 were there, for at least 66.666ms (bucket "a")".
func (d Denial) String() string {
	were := "were"
	if d.Free == 1 {
		were = "was"
	}
	return fmt.Sprintf("%s denied at %s, %d %s there, for at least %v%s",
		count(d.Unit, "token"), clock(d.At), d.Free, were, d.Late, inBucket(d.Bucket))
}

// worseThan orders faults so that reports add up to the same in any order.
func (o Over) worseThan(other Over) bool {
	return cmp.Or(
		cmp.Compare(other.Tokens, o.Tokens),
		cmp.Compare(o.Bucket, other.Bucket),
		o.From.Compare(other.From),
	) < 0
}

func (d Denial) compare(other Denial) int {
	return cmp.Or(
		cmp.Compare(other.Late, d.Late), // the largest first
		cmp.Compare(d.Bucket, other.Bucket),
		d.At.Compare(other.At),
		cmp.Compare(d.Unit, other.Unit),
	)
}

func (r *Report) addNotDue(d Denial) {
	r.NotDueTotal++
	at, _ := slices.BinarySearchFunc(r.NotDue, d, Denial.compare)
	if at == MaxListed {
		return
	}
	r.NotDue = slices.Insert(r.NotDue, at, d)
	r.NotDue = r.NotDue[:min(len(r.NotDue), MaxListed)]
}

// named sets the bucket's name in the faults.
func (r Report) named(bucket string) Report {
	if r.Over.Tokens > 0 {
		r.Over.Bucket = bucket
	}
	for i := range r.NotDue {
		r.NotDue[i].Bucket = bucket
	}
	return r
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func clock(t time.Time) string { return t.Format("2006-01-02T15:04:05.000000Z07:00") }

func inBucket(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (bucket %q)", name)
}
