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
	"github.com/pglimit/ratelimit/strategies"
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

// read a part in a time of its own: a locked table does not hide what the others say.
func read[T any](r *http.Request, from func(ctx context.Context) (T, error)) part[T] {
	ctx, cancel := timed(r)
	defer cancel()
	return partOf(from(ctx))
}

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
	curves, err := a.numbers.curves(r.Context(), a.pool, may)
	data.Top = a.top(r, granted)

	type instances struct {
		Limiter   string
		Instances int64
	}
	live := read(r, func(ctx context.Context) ([]instances, error) { return many[instances](ctx, a.pool, instancesSQL) })
	var followers []follower
	for _, l := range live.Rows {
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
	data.Followers = part[[]follower]{followers, live.Error}
	data.More = max(0, len(curves)-mostCurves)
	data.Curves = partOf(curves[:min(len(curves), mostCurves)], err)
	if data.MayAll {
		data.Health = read(r, a.health)
	}
	a.show(w, r, http.StatusOK, data)
}

// top is which keys, of limiters that the viewer may see, are denied (or granted) most.
func (a *admin) top(r *http.Request, granted bool) part[[]pglimit.TopKey] {
	ctx, cancel := timed(r)
	defer cancel()
	limiters, err := a.visible(ctx, r, "top_keys")
	if limiters == nil {
		limiters = []string{""}
	}
	var all []pglimit.TopKey
	for _, limiter := range limiters {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			break
		}
		var some []pglimit.TopKey
		some, err = a.numbers.topKeys(ctx, a.config.Top, granted, limiter)
		all = append(all, some...)
	}
	all = slices.DeleteFunc(all, func(k pglimit.TopKey) bool { return !a.may(r, k.Limiter, false) })
	slices.SortStableFunc(all, func(a, b pglimit.TopKey) int {
		if granted {
			return cmp.Compare(b.Granted10m, a.Granted10m)
		}
		return cmp.Compare(b.Denied10m, a.Denied10m)
	})
	return partOf(all[:min(len(all), mostTop)], err)
}

// visible are the limiters in a table that the viewer may see; nil: all. What is asked for only them is not cut short by
// what is hidden.
func (a *admin) visible(ctx context.Context, r *http.Request, table string) ([]string, error) {
	if a.may(r, "", false) {
		return nil, nil
	}
	rows, err := many[struct{ Limiter string }](ctx, a.pool,
		"select distinct limiter from pglimit."+table+" where limiter is not null order by limiter")
	limiters := []string{}
	for _, row := range rows {
		if a.may(r, row.Limiter, false) {
			limiters = append(limiters, row.Limiter)
		}
	}
	return limiters, err
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
	data := rulesPage{page: p, Form: f, Limiter: limiter, MayChange: a.may(r, limiter, true)}
	list := read(r, a.table.List)
	all := list.Rows
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
	data.Rules = part[[]rule]{listed[:min(len(listed), mostRules)], list.Error}
	data.History = a.history(r, limiter, "")
	a.show(w, r, status, data)
}

// covers says whether the rule before, in the order of limits.Table.List, is the temporary one for the same keys that
// has not ended.
func covers(before, r *limits.Rule) bool {
	return before.Limiter == r.Limiter && before.Key == r.Key && before.Prefix == r.Prefix && before.Kind() == r.Kind() &&
		!before.Expired
}

// history of what the viewer may see.
func (a *admin) history(r *http.Request, limiter, key string) part[[]limits.Entry] {
	ctx, cancel := timed(r)
	defer cancel()
	limiters := []string{limiter}
	var err error
	if limiter == "" {
		var more []string
		more, err = a.visible(ctx, r, "limits_history")
		limiters = append(limiters, more...)
	}
	var all []limits.Entry
	for _, limiter := range limiters {
		if err != nil {
			break
		}
		var some []limits.Entry
		some, err = a.table.History(ctx, limiter, key, mostHistory)
		all = append(all, some...)
	}
	all = slices.DeleteFunc(all, func(e limits.Entry) bool {
		of := cmp.Or(e.After, e.Before)
		return of.Limiter != "" && !a.may(r, of.Limiter, false)
	})
	slices.SortFunc(all, func(a, b limits.Entry) int { return cmp.Compare(b.ID, a.ID) })
	all = slices.CompactFunc(all, func(a, b limits.Entry) bool { return a.ID == b.ID })
	return partOf(all[:min(len(all), mostHistory)], err)
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
	Tokens       bool // what the rule's bucket has is of the key's strategy
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
	p.Title = quote(f.Key) + " of " + quote(f.Limiter)
	data := keyPage{page: p, Limiter: f.Limiter, Key: f.Key, Shown: a.config.Top.Shown(f.Key),
		MayChange: a.may(r, f.Limiter, true)}

	data.Rules = read(r, func(ctx context.Context) ([]limits.Explanation, error) {
		return a.table.Explain(ctx, f.Limiter, f.Key)
	})
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
	data.Followers = read(r, func(ctx context.Context) (limits.Followers, error) {
		return a.table.Followers(ctx, f.Limiter)
	})
	if !a.may(r, data.Followers.Rows.Near, false) {
		data.Followers.Rows.Near = ""
	}
	data.Buckets = read(r, func(ctx context.Context) ([]bucket, error) {
		return many[bucket](ctx, a.pool, bucketsSQL, f.Limiter, f.Key)
	})
	data.Tokens = len(data.Buckets.Rows) == 0 || slices.ContainsFunc(data.Buckets.Rows, func(b bucket) bool {
		return b.Strategy == strategies.TokenBucket{}.Name()
	})
	data.Block = read(r, func(ctx context.Context) (*block, error) {
		return one[block](ctx, a.pool, blockSQL, f.Limiter, f.Key)
	})
	data.Holders = read(r, func(ctx context.Context) ([]holder, error) {
		return many[holder](ctx, a.pool, holdersSQL, []string{f.Limiter}, f.Key, mostHolders)
	})
	data.History = a.history(r, f.Limiter, f.Key)
	for _, granted := range []bool{false, true} {
		top, err := a.numbers.topKeys(r.Context(), a.config.Top, granted, f.Limiter)
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
	limiters, err := a.visible(ctx, r, "holders")
	var holders []holder
	if err == nil {
		holders, err = many[holder](ctx, a.pool, holdersSQL, limiters, nil, mostHolders)
	}
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
