package adminlimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// form about a rule: as it was sent, or as a link fills it in.
type form struct {
	Limiter, Key, Prefix         string
	Action, Kind, Limit, MaxWait string
	Expires                      string // as limits.Table.Expiry reads it; empty: never
	Note                         string
	Do                           string // set, delete, enable or disable
	From                         string // the page that it was on
}

func formOf(v url.Values) form {
	f := form{
		Limiter: v.Get("limiter"), Key: v.Get("key"), Prefix: v.Get("prefix"), Action: v.Get("action"),
		Limit: v.Get("limit"), MaxWait: v.Get("max_wait"), Expires: v.Get("expires"), Note: v.Get("note"),
		Do: v.Get("do"), From: v.Get("from"),
	}
	if f.Action == "" {
		f.Action = pglimit.ActionEnforce.String()
	}
	if !v.Has("expires") {
		f.Expires = "24h"
	}
	return f
}

// Spans are those that a form offers: for how long a rule holds.
func (f form) Spans() [][2]string {
	spans := [][2]string{{"1h", "for an hour"}, {"24h", "for a day"}, {"7day", "for a week"}, {"", "until it is changed"}}
	if !slices.ContainsFunc(spans, func(s [2]string) bool { return s[0] == f.Expires }) {
		spans = append(spans, [2]string{f.Expires, "until " + f.Expires})
	}
	return spans
}

// page on which the form was.
func (f form) page() string {
	if f.From == "key" {
		return link("key", "limiter", f.Limiter, "key", f.Key)
	}
	return link("rules", "limiter", f.Limiter)
}

// posted parses what a form sends, and says whether its sender may change the limiter. If not, that is answered.
func (a *admin) posted(w http.ResponseWriter, r *http.Request) (f form, ok bool) {
	if err := r.ParseForm(); err != nil {
		a.refuse(w, r, http.StatusBadRequest, fmt.Sprintf("The form cannot be read: %v. It may have %d bytes.", err, maxBody))
		return f, false
	}
	for name, values := range r.PostForm {
		if text := strings.Join(values, ""); strings.Contains(text, "\x00") || !utf8.ValidString(text) {
			a.refuse(w, r, http.StatusBadRequest, quote(name)+" has a NUL byte or is not valid UTF-8, "+
				"which Postgres cannot store.")
			return f, false
		}
	}
	f = formOf(r.PostForm)
	if strings.ContainsAny(f.Limiter+f.Key+f.Prefix, "\r\n") { // browsers write CR LF for each
		a.refuse(w, r, http.StatusBadRequest, "A name has a line break, which browsers change in forms, so that another "+
			"key would be meant: use \"pglimit limits\" or \"pglimit reset\" in a shell.")
		return f, false
	}
	if !a.may(r, f.Limiter, true) {
		a.forbid(w, r, f.Limiter, true)
		return f, false
	}
	return f, true
}

// posts handles a form, which is read before it uses the pool.
func (a *admin) posts(do func(w http.ResponseWriter, r *http.Request, f form)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if f, ok := a.posted(w, r); ok {
			a.bounded(func(w http.ResponseWriter, r *http.Request) { do(w, r, f) })(w, r)
		}
	}
}

// change a rule.
func (a *admin) change(w http.ResponseWriter, r *http.Request, f form) {
	ctx, cancel := timed(r)
	defer cancel()
	err := a.changeRule(ctx, f, a.who(r))
	if err != nil {
		a.again(w, r, f, err)
		return
	}
	a.log(r, "pglimit: rule", f, slog.String("do", f.Do), slog.String("prefix", f.Prefix),
		slog.String("action", f.Action), slog.String("limit", f.Limit), slog.String("expires", f.Expires))
	leadTo(w, addDone(f.page(), f.Do))
}

// log who did it, to what, and why.
func (a *admin) log(r *http.Request, message string, f form, attributes ...slog.Attr) {
	key := f.Key
	if key != "" {
		key = a.config.Top.Shown(key)
	}
	a.config.Logger.LogAttrs(r.Context(), slog.LevelInfo, message, append([]slog.Attr{slog.String("who", a.who(r)),
		slog.String("limiter", f.Limiter), slog.String("key", key), slog.String("note", f.Note),
		slog.String("remote", r.RemoteAddr)}, attributes...)...)
}

func addDone(to, do string) string {
	separator := "?"
	if u, err := url.Parse(to); err == nil && u.RawQuery != "" {
		separator = "&"
	}
	return to + separator + "done=" + do
}

// again shows the page of a form that was not done, with what was sent and why not.
func (a *admin) again(w http.ResponseWriter, r *http.Request, f form, err error) {
	status := http.StatusUnprocessableEntity
	if !errors.Is(err, limits.ErrNoRule) && !errors.As(err, new(inputError)) {
		status = http.StatusServiceUnavailable
	}
	p := page{View: f.From, Error: why(err)}
	if errors.Is(err, context.DeadlineExceeded) {
		p.Error += " Perhaps a transaction that changes limits is open. It is not known whether anything was changed."
	}
	if f.From == "key" && checkNames(f.Limiter, f.Key) == nil && f.Key != "" {
		a.showKey(w, r, status, p, f)
		return
	}
	p.View, p.Title = "rules", "Rules"
	if checkNames(f.Limiter, "") != nil {
		f.Limiter = ""
	}
	a.showRules(w, r, status, p, f)
}

// inputError says what is wrong with a form.
type inputError string

func (e inputError) Error() string { return string(e) }

func (a *admin) changeRule(ctx context.Context, f form, who string) error {
	rule := limits.Rule{Limiter: f.Limiter, Key: f.Key, Prefix: f.Prefix, Limit: f.Limit, MaxWait: f.MaxWait,
		Note: f.Note, By: who}
	if err := rule.Action.UnmarshalText([]byte(f.Action)); err != nil {
		return inputError(err.Error())
	}
	var before *limits.Rule
	var err error
	switch f.Do {
	case "set":
		if f.Expires != "" {
			now, err := a.table.Now(ctx)
			if err != nil {
				return err
			}
			if rule.Expires, err = limits.ParseExpiry(f.Expires, now); err != nil {
				return inputError("The end of a rule " + err.Error())
			}
		}
		_, err = a.table.Set(ctx, rule)
		return err
	case "delete":
		before, err = a.table.Delete(ctx, rule)
	case "enable":
		before, err = a.table.Enable(ctx, rule)
	case "disable":
		before, err = a.table.Disable(ctx, rule)
	default:
		return inputError(fmt.Sprintf("do is %q: it must be set, delete, enable or disable", f.Do))
	}
	if err == nil && before == nil {
		return inputError("There is no such rule any more: somebody else may have deleted it.")
	}
	return err
}

// reset fills the key's bucket, of whichever strategy.
func (a *admin) reset(w http.ResponseWriter, r *http.Request, f form) {
	ctx, cancel := timed(r)
	defer cancel()
	f.Do, f.From, f.Note = "reset", "key", strings.TrimSpace(f.Note)
	err := checkNames(f.Limiter, f.Key)
	switch {
	case err != nil, f.Key == "":
		a.showKey(w, r, http.StatusBadRequest, page{View: "key"}, f)
		return
	case f.Note == "", utf8.RuneCountInString(f.Note) > 1000:
		err = inputError("A reset needs a note, for the log, of at most 1,000 characters.")
	default:
		err = a.resetKey(ctx, f.Limiter, f.Key)
	}
	if err != nil {
		a.again(w, r, f, err)
		return
	}
	a.log(r, "pglimit: reset", f)
	leadTo(w, addDone(f.page(), f.Do))
}

func (a *admin) resetKey(ctx context.Context, limiter, key string) error {
	buckets, err := many[bucket](ctx, a.pool, bucketsSQL, limiter, key)
	if err != nil {
		return err
	}
	used := []string{strategies.TokenBucket{}.Name()} // which has blocks, too
	// That of exclusion_range, which need not be migrated, is not among those that are shown.
	ranges, err := one[struct{ Migrated bool }](ctx, a.pool,
		"select pg_catalog.to_regclass('pglimit.exclusion_range') is not null")
	if err != nil {
		return err
	}
	if ranges.Migrated {
		used = append(used, strategies.ExclusionRange{}.Name())
	}
	for _, b := range buckets {
		if !slices.Contains(used, b.Strategy) {
			used = append(used, b.Strategy)
		}
	}
	for _, name := range used {
		strategy, err := strategies.ByName(name)
		if err != nil {
			return err
		}
		// A full bucket is full under any limit. A single call cannot be combined.
		one, err := pglimit.New(a.pool, strategy, pglimit.Config{
			Name: limiter, Limit: pglimit.Every(time.Second), Timeout: queryTimeout,
			Combine: pglimit.Combine{Off: true}, Memory: pglimit.Memory{Off: true}, Breaker: pglimit.Breaker{Off: true},
		})
		if err != nil {
			return err
		}
		if err := errors.Join(one.Reset(ctx, key), one.Close(ctx)); err != nil {
			return err
		}
	}
	return nil
}
