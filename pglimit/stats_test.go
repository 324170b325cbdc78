package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// byKey is a take that does what the key of its first request says; and causes, what its
// failures are.
func byKey(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
	switch requests[0].Key {
	case "down":
		return nil, errDown
	case "gone":
		return nil, fmt.Errorf("%w: connection refused", pglimit.ErrUnavailable)
	case "refused":
		return nil, fmt.Errorf("%w: a bad row", pglimit.ErrNothingTaken)
	case "not migrated":
		return nil, pglimit.ErrNotMigrated
	case "no right":
		return nil, pglimit.ErrPermission
	case "slow", "left":
		<-ctx.Done()
		return nil, ctx.Err()
	case "denied":
		decisions := make([]pglimit.Decision, len(requests))
		for i, r := range requests { // an empty bucket
			decisions[i] = pglimit.Decision{RetryAfter: time.Duration(r.Unit) * r.Limit.Token(), ResetAfter: r.Limit.Window()}
		}
		return decisions, nil
	case "contended":
		return answer(pglimit.Decision{Contended: true, RetryAfter: time.Minute})(ctx, requests)
	}
	return grantAll(ctx, requests)
}

var causes = map[string]pglimit.Cause{
	"down": pglimit.CauseOther, "gone": pglimit.CauseUnavailable, "refused": pglimit.CauseRefused, "not migrated": pglimit.CauseNotMigrated,
	"no right": pglimit.CausePermission, "slow": pglimit.CauseTimeout,
}

// ways to ask for a key: each says how many requests that is, and what was heard.
var ways = map[string]func(ctx context.Context, l *pglimit.Limiter, key string) (requests int, heard []pglimit.Decision, err error){
	"Allow": func(ctx context.Context, l *pglimit.Limiter, key string) (int, []pglimit.Decision, error) {
		d, err := l.Allow(ctx, key)
		return 1, []pglimit.Decision{d}, err
	},
	"AllowN": func(ctx context.Context, l *pglimit.Limiter, key string) (int, []pglimit.Decision, error) {
		d, err := l.AllowN(ctx, key, 3)
		return 1, []pglimit.Decision{d}, err
	},
	"Peek": func(ctx context.Context, l *pglimit.Limiter, key string) (int, []pglimit.Decision, error) {
		d, err := l.Peek(ctx, key)
		return 1, []pglimit.Decision{d}, err
	},
	"Take": func(ctx context.Context, l *pglimit.Limiter, key string) (int, []pglimit.Decision, error) {
		ds, err := l.DoEach(ctx, pglimit.Request{Key: key, Tokens: 1}, pglimit.Request{Key: key}, pglimit.Request{Key: key, Tokens: 4, Unit: 2})
		return 3, ds, err
	},
}

// answered is what OnDecision is told of one request.
type answered struct {
	key      string
	decision pglimit.Decision
	err      error
}

// Whatever the stages, whoever asks in whatever way, and whatever becomes of it: each request
// is counted once, as what its caller was told; and one that OnError decided, also by its cause.
// OnDecision is told the same, as often, and OnRoundTrip of each call and its outcome.
func TestEveryRequestIsCountedOnce(t *testing.T) {
	t.Parallel()
	for way, ask := range ways {
		for stages := range 8 {
			combine, memory, fallback := stages&1 > 0, stages&2 > 0, stages&4 > 0
			t.Run(fmt.Sprintf("%s combine=%t memory=%t fallback=%t", way, combine, memory, fallback), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var told []answered
					var trips trips
					var took, sent int64
					limiter := newLimiter(t, &fake{take: byKey}, func(c *pglimit.Config) {
						c.Combine.Off, c.Memory.Off, c.Timeout = !combine, !memory, time.Second
						if fallback {
							c.OnError = pglimit.FailClosed
						}
						c.OnDecision = func(_ context.Context, r pglimit.Request, d pglimit.Decision, err error) {
							told = append(told, answered{r.Key, d, err})
						}
						c.OnRoundTrip = trips.onRoundTrip
					})
					var want pglimit.Stats
					remembered := 0
					for range 2 {
						for _, key := range []string{"granted", "denied", "contended", "down", "gone", "refused", "not migrated", "no right", "slow", "left"} {
							ctx, leave := context.WithCancel(t.Context())
							if key == "left" {
								time.AfterFunc(time.Millisecond, leave)
							}
							told = nil
							requests, heard, err := ask(ctx, limiter, key)
							if len(told) != requests {
								t.Errorf("%s: told of %d requests of %d", key, len(told), requests)
							}
							for i, a := range told {
								if a.key != key || a.decision != heard[i] || !errors.Is(err, a.err) {
									t.Errorf("%s: told %+v, heard %+v, %v", key, a, heard[i], err)
								}
							}
							cause, fails := causes[key]
							setUp := key != "not migrated" && key != "no right"
							switch {
							case key == "left":
								want.Canceled += int64(requests)
								if !errors.Is(err, context.Canceled) {
									t.Errorf("%s: %v", key, err)
								}
							case fails:
								want.Failed[cause] += int64(requests)
								if fallback && setUp {
									want.Denied[pglimit.FromFallback] += int64(requests)
								}
								if (err == nil) != (fallback && setUp) {
									t.Errorf("%s: %v", key, err)
								}
							case err != nil:
								t.Errorf("%s: %v", key, err)
							default:
								for _, d := range heard {
									if d.Allowed {
										want.Allowed[pglimit.FromDatabase]++
									} else if want.Denied[d.Source]++; d.Source == pglimit.FromMemory {
										remembered++
									}
									if d.Contended {
										want.Contended++
									}
								}
							}
							leave()
							later(5 * time.Second)
							if key == "denied" {
								_, heard, _ := ask(t.Context(), limiter, key) // what was remembered is forgotten
								again, more, _ := ask(t.Context(), limiter, key)
								for _, d := range append(heard, more...) {
									if want.Denied[d.Source]++; d.Source == pglimit.FromMemory {
										remembered++
									}
								}
								if len(heard) != again || len(more) != again {
									t.Errorf("%d and %d decisions of %d requests", len(heard), len(more), again)
								}
							}
							outcome := outcomes[key]
							if key == "slow" && combine && way == "Take" { // it was queued, and ends when its callers have gone
								outcome = "canceled"
							}
							for _, trip := range trips.take() {
								if trip.Limiter != "api" || trip.Strategy != "fake" || trip.Operation != "take" || trip.Outcome != outcome || (trip.Err == nil) != (outcome == "ok") {
									t.Errorf("%s: %+v, want %s", key, trip, outcome)
								}
								took, sent = took+1, sent+int64(trip.Requests)
							}
						}
					}
					if (remembered > 0) != (memory && way != "Peek") {
						t.Errorf("%d were answered from memory", remembered)
					}
					if want.Contended == 0 || want.Canceled == 0 {
						t.Errorf("not tested: %+v", want)
					}
					got := limiter.Stats()
					if got.Allowed != want.Allowed || got.Denied != want.Denied || got.Failed != want.Failed || got.Canceled != want.Canceled || got.Contended != want.Contended {
						t.Errorf("got  %+v\nwant %+v", got, want)
					}
					if got.RoundTrips != took || got.Requests != sent || took == 0 {
						t.Errorf("told of %d calls with %d requests, counted %d with %d", took, sent, got.RoundTrips, got.Requests)
					}
					if got.Waiting != 0 {
						t.Errorf("%d are waiting", got.Waiting)
					}
				})
			})
		}
	}
}

// Who is turned away, of one Take or of several callers, and what a caller is told who is no
// request at all.
func TestWhatElseIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, &fake{take: func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			time.Sleep(time.Second)
			return grantAll(ctx, requests)
		}}, func(c *pglimit.Config) { c.Combine.Off, c.MaxWaiting, c.OnError = false, 2, pglimit.FailOpen })
		go func() { _, _ = limiter.Allow(t.Context(), "a") }()
		synctest.Wait()
		if s := limiter.Stats(); s.Waiting != 1 || s.Allowed.Total() != 0 {
			t.Errorf("while one waits: %+v", s)
		}
		if _, err := limiter.DoEach(t.Context(), pglimit.Request{Key: "b", Tokens: 1}, pglimit.Request{Key: "c", Tokens: 1}, pglimit.Request{Key: "d", Tokens: 1}); err != nil {
			t.Error(err)
		}
		later(time.Second)
		_, _ = limiter.Allow(t.Context(), "")
		_, _ = limiter.DoEach(t.Context(), pglimit.Request{Key: "k"}, pglimit.Request{})
		_, _ = limiter.DoEach(t.Context())
		s := limiter.Stats()
		if s.Waiting != 0 || s.Allowed[pglimit.FromDatabase] != 1 || s.Allowed[pglimit.FromFallback] != 3 || s.Failed[pglimit.CauseOverloaded] != 3 ||
			s.Allowed.Total() != 4 || s.Denied.Total() != 0 || s.Failed.Total() != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// What an OnError that fails answers is counted as the failure that it is, and no more.
func TestAFailureThatOnErrorReturnsIsCountedOnce(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, &fake{take: byKey}, func(c *pglimit.Config) {
		c.OnError = func(context.Context, pglimit.Failure) (pglimit.Decision, error) {
			return pglimit.Decision{Allowed: true}, errors.New("as the caller likes")
		}
	})
	if _, err := limiter.Allow(t.Context(), "gone"); err == nil || err.Error() != "as the caller likes" {
		t.Error(err)
	}
	if s := limiter.Stats(); s.Failed[pglimit.CauseUnavailable] != 1 || s.Failed.Total() != 1 || s.Allowed.Total()+s.Denied.Total() != 0 {
		t.Errorf("%+v", s)
	}
}

// numbered Stats: each number another one.
func numbered(from int64) (s pglimit.Stats, numbers int) {
	for _, field := range reflect.ValueOf(&s).Elem().Fields() {
		each := []reflect.Value{field}
		if field.Kind() == reflect.Array {
			each = nil
			for j := range field.Len() {
				each = append(each, field.Index(j))
			}
		}
		for _, number := range each {
			number.SetInt(from + int64(numbers))
			numbers++
		}
	}
	return s, numbers
}

func TestAllTheNumbers(t *testing.T) {
	t.Parallel()
	s, numbers := numbered(1)
	var gauges, labels []string
	names, values := map[string]pglimit.Stat{}, map[string]bool{}
	next := int64(1)
	for stat := range s.All() {
		if stat.Value != next {
			t.Errorf("%+v is not in the order of the fields: want %d", stat, next)
		}
		next++
		if !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(stat.Name) || !regexp.MustCompile(`^[A-Z1].*[a-z0]\.$`).MatchString(stat.Help) {
			t.Errorf("%q: %q", stat.Name, stat.Help)
		}
		if (stat.Label == "") != (stat.LabelValue == "") {
			t.Errorf("%+v: a label without a value, or the other way round", stat)
		}
		of := stat.Name + "/" + stat.LabelValue
		if values[of] {
			t.Errorf("%s twice", of)
		}
		values[of] = true
		if before, known := names[stat.Name]; known && (before.Help != stat.Help || before.Gauge != stat.Gauge || before.Label != stat.Label || stat.Label == "") {
			t.Errorf("%+v and %+v", before, stat)
		}
		names[stat.Name] = stat
		if stat.Gauge {
			gauges = append(gauges, stat.Name)
		}
		if stat.Label != "" {
			labels = append(labels, stat.Name+"{"+stat.Label+"="+stat.LabelValue+"}")
		}
	}
	if int(next-1) != numbers || len(names) != reflect.TypeFor[pglimit.Stats]().NumField() {
		t.Errorf("%d of %d numbers, %d names", next-1, numbers, len(names))
	}
	if got := strings.Join(gauges, " "); got != "limits_version limits_age_seconds limits_failing_rules live_instances adjusted_percent waiting asleep breaker_open" {
		t.Errorf("these can fall: %s", got)
	}
	want := "allowed{source=database} allowed{source=memory} allowed{source=lease} allowed{source=fallback} allowed{source=rule} allowed{source=adjust} allowed{source=new_keys} " +
		"denied{source=database} denied{source=memory} denied{source=lease} denied{source=fallback} denied{source=rule} denied{source=adjust} denied{source=new_keys} " +
		"failed{cause=other} failed{cause=closed} failed{cause=unavailable} failed{cause=timeout} failed{cause=breaker} " +
		"failed{cause=overloaded} failed{cause=not_migrated} failed{cause=permission} failed{cause=setting} failed{cause=pooler} failed{cause=refused} " +
		"ruled{action=enforce} ruled{action=observe} ruled{action=allow} ruled{action=deny} ruled{action=off}"
	if got := strings.Join(labels, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Who has seen enough stops, in the middle of a field too.
func TestTheNumbersCanBeLeft(t *testing.T) {
	t.Parallel()
	s, numbers := numbered(1)
	for most := 1; most <= numbers; most++ {
		var seen []int64
		for stat := range s.All() {
			if seen = append(seen, stat.Value); len(seen) == most {
				break
			}
		}
		if len(seen) != most || seen[most-1] != int64(most) {
			t.Errorf("the first %d: %v", most, seen)
		}
	}
}

func TestSinceAndPlus(t *testing.T) {
	t.Parallel()
	before, numbers := numbered(1)
	after, _ := numbered(1000)
	values := func(s pglimit.Stats) (values []int64) {
		for stat := range s.All() {
			values = append(values, stat.Value)
		}
		return values
	}
	var since, sum []int64
	at := int64(0)
	for stat := range after.All() {
		if stat.Gauge {
			since = append(since, 1000+at)
		} else {
			since = append(since, 999)
		}
		if strings.HasPrefix(stat.Name, "limits_") || stat.Name == "adjusted_percent" || stat.Name == "live_instances" {
			sum = append(sum, 1000+at)
		} else {
			sum = append(sum, 1001+2*at)
		}
		at++
	}
	if got := values(after.Since(before)); !slices.Equal(got, since) || len(got) != numbers {
		t.Errorf("since: %v, want %v", got, since)
	}
	if got := values(after.Plus(before)); !slices.Equal(got, sum) {
		t.Errorf("plus: %v, want %v", got, sum)
	}
	if fresh, _ := numbered(1000); after != fresh {
		t.Error("they were changed")
	}
	if before.Allowed.Total() != 1+2+3+4+5+6+7 || before.Failed.Total() != 17+18+19+20+21+22+23+24+25+26+27 {
		t.Errorf("totals %d, %d", before.Allowed.Total(), before.Failed.Total())
	}
}
