package adminlimit

import (
	"cmp"
	"context"
	_ "embed"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

//go:embed instances.sql
var instancesSQL string

//go:embed health.sql
var healthSQL string

//go:embed buckets.sql
var bucketsSQL string

//go:embed block.sql
var blockSQL string

//go:embed holders.sql
var holdersSQL string

const (
	mostRules   = 200
	mostHistory = 50
	mostHolders = 200
	mostTop     = 12
)

// part of a page: what was read, or why it was not. The other parts are shown all the same.
type part[T any] struct {
	Rows  T
	Error string
}

func partOf[T any](rows T, err error) part[T] { return part[T]{rows, why(err)} }

// follower says how many live instances follow a limiter's rules.
type follower struct {
	Limiter   string
	Instances int64
	Counts    bool // it was asked in the last minutes
}

// serves is the name under which instances of "pglimit serve" follow the rules of any limiter.
const serves = "(table)"

// health of the database: a row of health.sql.
type health struct {
	Version              string
	Standby              bool
	Connections, Most    int64
	Waiting              int64
	Oldest               float64 // seconds
	Bytes, Rows, Dead    int64
	Now                  time.Time
	Took                 time.Duration `db:"-"`
	PoolInUse, PoolConns int32         `db:"-"`
}

func (a *admin) overview(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := timed(r)
	defer cancel()
	may := func(limiter string) bool { return a.may(r, limiter, false) }
	granted := r.URL.Query().Get("by") == "granted"
	data := struct {
		page
		Curves    part[[]curve]
		More      int // curves that are not shown
		Granted   bool
		Top       part[[]pglimit.TopKey]
		Followers part[[]follower]
		Servers   int64
		MayAll    bool
		Health    part[*health]
	}{page: newPage(r, "overview", "Overview"), Granted: granted, MayAll: may("")}
	curves, err := a.numbers.curves(ctx, a.pool, may)
	top, topErr := a.numbers.topKeys(ctx, a.config.Top, granted, may)
	data.Top = partOf(top[:min(len(top), mostTop)], topErr)

	live, liveErr := many[struct {
		Limiter   string
		Instances int64
	}](ctx, a.pool, instancesSQL)
	var followers []follower
	for _, l := range live {
		if l.Limiter == serves {
			data.Servers = l.Instances
		} else if may(l.Limiter) {
			followers = append(followers, follower{l.Limiter, l.Instances, false})
		}
	}
	for _, c := range curves {
		i := slices.IndexFunc(followers, func(f follower) bool { return f.Limiter == c.Limiter })
		if i < 0 {
			i = len(followers)
			followers = append(followers, follower{Limiter: c.Limiter})
		}
		followers[i].Counts = true
	}
	slices.SortFunc(followers, func(a, b follower) int { return strings.Compare(a.Limiter, b.Limiter) })
	data.Followers = partOf(followers, liveErr)
	data.More = max(0, len(curves)-mostCurves)
	data.Curves = partOf(curves[:min(len(curves), mostCurves)], err)
	if data.MayAll {
		data.Health = partOf(a.health(ctx))
	}
	a.show(w, r, http.StatusOK, data)
}

func (a *admin) health(ctx context.Context) (*health, error) {
	began := time.Now()
	h, err := one[health](ctx, a.pool, healthSQL)
	if h != nil {
		stat := a.pool.Stat()
		h.Took, h.PoolInUse, h.PoolConns = time.Since(began), stat.AcquiredConns(), stat.MaxConns()
	}
	return h, err
}

// rulesPage lists rules and their history.
type rulesPage struct {
	page
	Form      form
	Limiter   string // whose; empty: all that the viewer may see
	Key       string
	MayChange bool
	Rules     part[[]rule]
	More      int // rules that are not shown
	History   part[[]limits.Entry]
	Off       *rule // switches the limiter off, or all
}

// rule with what can be done about it.
type rule struct {
	limits.Rule
	MayChange bool
	Covered   bool // by the temporary rule for the same keys, which "disable" and "delete" are about
}

func (a *admin) rules(w http.ResponseWriter, r *http.Request) {
	a.showRules(w, r, http.StatusOK, newPage(r, "rules", "Rules"), formOf(r.URL.Query()))
}

// showRules with a form, as it was sent or as a link fills it in.
func (a *admin) showRules(w http.ResponseWriter, r *http.Request, status int, p page, f form) {
	limiter := f.Limiter
	if limiter != "" {
		if err := checkNames(limiter, ""); err != nil {
			a.refuse(w, r, http.StatusBadRequest, why(err))
			return
		}
		if !a.may(r, limiter, false) {
			a.forbid(w, r, limiter, false)
			return
		}
		p.Title = "Rules of " + quote(limiter)
	}
	ctx, cancel := timed(r)
	defer cancel()
	data := rulesPage{page: p, Form: f, Limiter: limiter, MayChange: a.may(r, limiter, true)}
	all, err := a.table.List(ctx)
	listed := make([]rule, 0, len(all))
	for i := range all {
		one := rule{all[i], a.may(r, all[i].Limiter, true), i > 0 && covers(&all[i-1], &all[i])}
		if one.Limiter == "" || one.Limiter == limiter || limiter == "" && a.may(r, one.Limiter, false) {
			listed = append(listed, one)
		}
		if one.Kind() == "off" && one.Limiter == limiter && !one.Covered && !one.Disabled && !one.Expired {
			data.Off = &one
		}
	}
	data.More = max(0, len(listed)-mostRules)
	data.Rules = partOf(listed[:min(len(listed), mostRules)], err)
	data.History = a.history(ctx, r, limiter, "")
	a.show(w, r, status, data)
}

// covers says whether the rule before, in the order of limits.Table.List, is the temporary one for the same keys that
// has not ended.
func covers(before, r *limits.Rule) bool {
	return before.Limiter == r.Limiter && before.Key == r.Key && before.Prefix == r.Prefix && before.Kind() == r.Kind() &&
		!before.Expired
}

// history of what the viewer may see.
func (a *admin) history(ctx context.Context, r *http.Request, limiter, key string) part[[]limits.Entry] {
	entries, err := a.table.History(ctx, limiter, key, mostHistory)
	entries = slices.DeleteFunc(entries, func(e limits.Entry) bool {
		of := cmp.Or(e.After, e.Before)
		return of.Limiter != "" && !a.may(r, of.Limiter, false)
	})
	return partOf(entries, err)
}

// bucket of a key: a row of buckets.sql.
type bucket struct {
	Strategy, Used  string
	LastTaken, Full *time.Time
	PausedUntil     *time.Time
}

// block of a key: a row of block.sql.
type block struct {
	Denials, Level int64
	Until          *time.Time
	LastCounted    time.Time
}

// holder of a permit: a row of holders.sql.
type holder struct {
	Limiter, Key, Holder string
	Weight               int64
	Since, Expires       time.Time
}

type keyPage struct {
	page
	Form         form
	Limiter, Key string
	Shown        string // the key as the list of those that are limited most has it
	MayChange    bool
	Counted      part[*pglimit.TopKey]
	Rules        part[[]limits.Explanation]
	Holds        *limits.Explanation // the rule that decides; nil: the limit in the service's configuration
	Followers    part[limits.Followers]
	Buckets      part[[]bucket]
	Block        part[*block]
	Holders      part[[]holder]
	History      part[[]limits.Entry]
}

func (a *admin) key(w http.ResponseWriter, r *http.Request) {
	a.showKey(w, r, http.StatusOK, newPage(r, "key", ""), formOf(r.URL.Query()))
}

// showKey with a form, as it was sent or as a link fills it in.
func (a *admin) showKey(w http.ResponseWriter, r *http.Request, status int, p page, f form) {
	err := checkNames(f.Limiter, f.Key)
	switch {
	case err == nil && f.Key == "":
		leadTo(w, link("rules", "limiter", f.Limiter))
		return
	case err != nil:
		a.refuse(w, r, http.StatusBadRequest, why(err))
		return
	case !a.may(r, f.Limiter, false):
		a.forbid(w, r, f.Limiter, false)
		return
	}
	ctx, cancel := timed(r)
	defer cancel()
	p.Title = quote(f.Key) + " of " + quote(f.Limiter)
	data := keyPage{page: p, Limiter: f.Limiter, Key: f.Key, Shown: a.config.Top.Shown(f.Key),
		MayChange: a.may(r, f.Limiter, true)}

	data.Rules = partOf(a.table.Explain(ctx, f.Limiter, f.Key))
	for i := range data.Rules.Rows {
		e := &data.Rules.Rows[i]
		if kind := e.Kind(); (e.State == limits.Holds || e.State == limits.Fails) && (kind == "live" || kind == "off") {
			data.Holds = e
			break
		}
	}
	if f.Limit == "" && data.Holds != nil {
		f.Limit = data.Holds.Limit
	}
	data.Form = f
	data.Followers = partOf(a.table.Followers(ctx, f.Limiter))
	data.Buckets = partOf(many[bucket](ctx, a.pool, bucketsSQL, f.Limiter, f.Key))
	data.Block = partOf(one[block](ctx, a.pool, blockSQL, f.Limiter, f.Key))
	data.Holders = partOf(many[holder](ctx, a.pool, holdersSQL, f.Limiter, f.Key, mostHolders))
	data.History = a.history(ctx, r, f.Limiter, f.Key)
	for _, granted := range []bool{false, true} {
		mine := func(limiter string) bool { return limiter == f.Limiter }
		top, err := a.numbers.topKeys(ctx, a.config.Top, granted, mine)
		data.Counted.Error = why(err)
		if i := slices.IndexFunc(top, func(k pglimit.TopKey) bool { return k.Key == data.Shown }); i >= 0 {
			data.Counted.Rows = &top[i]
			break
		}
	}
	a.show(w, r, status, data)
}

func (a *admin) permits(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := timed(r)
	defer cancel()
	holders, err := many[holder](ctx, a.pool, holdersSQL, nil, nil, mostHolders)
	more := len(holders) == mostHolders
	holders = slices.DeleteFunc(holders, func(h holder) bool { return !a.may(r, h.Limiter, false) })
	a.show(w, r, http.StatusOK, struct {
		page
		Holders part[[]holder]
		More    bool
	}{newPage(r, "permits", "Permits held"), partOf(holders, err), more})
}

// functions of the templates.
var functions = template.FuncMap{
	"link":   link,
	"quote":  quote,
	"count":  count,
	"rate":   rateText,
	"bytes":  bytesText,
	"time":   timeText,
	"span":   span,
	"does":   does,
	"keys":   keysText,
	"hashed": func(key string) bool { return strings.HasPrefix(key, "hmac:") },
	"back": func(r *limits.Rule) string { // a form with the rule as it was
		expires := "" // which a form without it takes for a day
		if !r.Expires.IsZero() {
			expires = r.Expires.Format(time.RFC3339)
		}
		return link("rules", "limiter", r.Limiter, "key", r.Key, "prefix", r.Prefix, "action", r.Action.String(),
			"limit", r.Limit, "max_wait", r.MaxWait) + "&expires=" + url.QueryEscape(expires) + "#set"
	},
	"actions": func() []string { return []string{"enforce", "observe", "allow", "deny", "places"} },
	"width":   func() int { return pictureWidth },
	"height":  func() int { return pictureHeight },
}

// quote a name if it could be misread.
func quote(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || strings.ContainsAny(name, " *") || name == "" {
		return quoted
	}
	return name
}

// count with a space between thousands.
func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// rateText has three digits, where they are needed.
func rateText(perSecond float64) string {
	switch {
	case perSecond >= 99.5:
		return count(int64(perSecond + 0.5))
	case perSecond >= 9.95:
		return strconv.FormatFloat(math.Round(perSecond*10)/10, 'f', -1, 64)
	case perSecond > 0:
		return strconv.FormatFloat(max(math.Round(perSecond*100)/100, 0.01), 'f', -1, 64)
	}
	return "0"
}

func bytesText(n int64) string {
	v, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, next
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + " " + unit
}

// timeText is a time, or nil.
func timeText(t any) string {
	switch t := t.(type) {
	case time.Time:
		return t.UTC().Format(time.DateTime)
	case *time.Time:
		if t != nil {
			return t.UTC().Format(time.DateTime)
		}
	}
	return "–"
}

// span of time, as a duration or in seconds.
func span(of any) string {
	d, ok := of.(time.Duration)
	if seconds, is := of.(float64); is {
		d, ok = time.Duration(seconds*float64(time.Second)), true
	}
	switch {
	case !ok:
		return "–"
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

// does says what a rule does: "enforce 5/s, until 2026-11-30 18:00:00".
func does(r *limits.Rule) string {
	if r == nil {
		return "no rule"
	}
	text := r.Action.String()
	if r.Limit != "" {
		text += " " + r.Limit
	}
	if r.MaxWait != "" {
		text += ", wait up to " + r.MaxWait
	}
	if !r.Expires.IsZero() {
		text += ", until " + timeText(r.Expires)
	}
	if r.Disabled {
		text += ", disabled"
	}
	return text
}

// keysText says for which keys a rule is.
func keysText(r *limits.Rule) string {
	switch {
	case r.Key != "":
		return quote(r.Key)
	case r.Prefix != "":
		return quote(r.Prefix) + "*"
	}
	return "all keys"
}
