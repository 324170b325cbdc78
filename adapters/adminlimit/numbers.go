package adminlimit

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
)

//go:embed totals.sql
var totalsSQL string

const (
	readEvery = 5 * time.Second // as often as processes write
	gap       = time.Minute     // after so long without a look, a curve begins again

	step  = int64(5 * time.Second) // a point of a curve
	shown = 60                     // points
	late  = int64(6 * time.Second) // what is younger may not be written yet

	mostCurves = 12
	mostKeys   = 200
)

// amounts are requests granted, denied and failed.
type amounts [3]float64

// numbers are what the page shows of all processes. Viewers share them: they are read when somebody looks, once in five
// seconds at most.
type numbers struct {
	mu     sync.Mutex
	readAt time.Time
	err    error
	now    int64                         // of the database
	rows   map[[2]string]row             // by limiter and slot
	points map[string]map[int64]*amounts // by limiter and time in steps

	keys map[pglimit.TopQuery]*topList
}

// topList answers a query for the keys that are limited most.
type topList struct {
	readAt time.Time
	list   []pglimit.TopKey
	err    error
}

// row of pglimit.top_keys.
type row struct {
	at     int64
	totals [3]int64
}

// curve of a limiter.
type curve struct {
	Limiter string
	Lines   [3]line // granted, denied, failed
	Most    float64 // requests per second, at the top of the picture
	busy    float64
}

// line of a curve. Rate is requests per second in the last minute; Sum is of the whole curve.
type line struct {
	Name, Points string
	Rate, Sum    float64
}

// curves of the busiest limiters that the viewer may see.
func (n *numbers) curves(ctx context.Context, pool *pgxpool.Pool, may func(limiter string) bool) ([]curve, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.readAt) >= readEvery {
		if time.Since(n.readAt) > gap {
			n.rows, n.points = make(map[[2]string]row), make(map[string]map[int64]*amounts)
		}
		n.readAt = time.Now()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queryTimeout) // others wait for it too
		defer cancel()
		n.err = n.read(ctx, pool)
	}
	var all []curve
	for limiter, points := range n.points {
		if may(limiter) {
			all = append(all, newCurve(limiter, points, (n.now-late)/step))
		}
	}
	all = slices.DeleteFunc(all, func(c curve) bool { return c.busy == 0 })
	slices.SortFunc(all, func(a, b curve) int {
		return cmp.Or(cmp.Compare(b.busy, a.busy), strings.Compare(a.Limiter, b.Limiter))
	})
	return all, n.err
}

// read what processes wrote since the last time.
func (n *numbers) read(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, totalsSQL)
	if err != nil {
		return postgres.Explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id [2]string
		var since int64
		var r row
		if err := rows.Scan(&n.now, &id[0], &id[1], &since, &r.at, &r.totals[0], &r.totals[1], &r.totals[2]); err != nil {
			return postgres.Explain(err)
		}
		before, known := n.rows[id]
		if known {
			since = before.at
		}
		if id[0] != "" && r.at > since {
			n.rows[id] = r
			n.spread(id[0], since, r.at, before.totals, r.totals)
		}
	}
	for limiter, points := range n.points {
		maps.DeleteFunc(points, func(at int64, _ *amounts) bool { return at < n.now/step-2*shown })
		if len(points) == 0 {
			delete(n.points, limiter)
		}
	}
	maps.DeleteFunc(n.rows, func(_ [2]string, r row) bool { return r.at < n.now-int64(10*time.Minute) })
	return postgres.Explain(rows.Err())
}

// spread what was counted from one time to another over the points between them.
func (n *numbers) spread(limiter string, from, to int64, before, after [3]int64) {
	points := n.points[limiter]
	if points == nil {
		points = make(map[int64]*amounts)
		n.points[limiter] = points
	}
	for at := from / step; at <= (to-1)/step; at++ {
		p := points[at]
		if p == nil {
			p = new(amounts)
			points[at] = p
		}
		share := float64(min(to, (at+1)*step)-max(from, at*step)) / float64(to-from)
		for i := range p {
			p[i] += share * float64(max(0, after[i]-before[i]))
		}
	}
}

// The picture of a curve.
const (
	pictureWidth, pictureHeight = 300, 64
	perSecond                   = float64(time.Second) / float64(step)
	lastMinute                  = int(int64(time.Minute) / step)
)

// newCurve of the points before end.
func newCurve(limiter string, points map[int64]*amounts, end int64) curve {
	c := curve{Limiter: limiter}
	var series [shown]amounts
	for i := range series {
		if p := points[end-shown+int64(i)]; p != nil {
			series[i] = *p
		}
		for _, amount := range series[i] {
			c.Most = max(c.Most, amount*perSecond)
			c.busy += amount
		}
	}
	c.Most = roundUp(c.Most)
	for kind, name := range []string{"granted", "denied", "failed"} {
		l := line{Name: name}
		var drawn strings.Builder
		for i, p := range &series {
			l.Sum += p[kind]
			if i >= shown-lastMinute {
				l.Rate += p[kind] / 60
			}
			fmt.Fprintf(&drawn, "%.1f,%.1f ", float64(i)*pictureWidth/(shown-1),
				pictureHeight*(1-p[kind]*perSecond/c.Most))
		}
		l.Points = drawn.String()
		c.Lines[kind] = l
	}
	return c
}

// roundUp to a round number.
func roundUp(v float64) float64 {
	for power := 0.1; ; power *= 10 {
		for _, n := range []float64{1, 1.5, 2, 3, 5, 7} {
			if v <= n*power {
				return n * power
			}
		}
	}
}

// topKeys are the keys of a limiter denied (or granted) most in the last ten minutes; if it is empty, of all.
func (n *numbers) topKeys(ctx context.Context, top *pglimit.Top, granted bool, limiter string) ([]pglimit.TopKey, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	query := pglimit.TopQuery{Limiter: limiter, Granted: granted, Limit: mostKeys}
	of := n.keys[query]
	if of == nil || time.Since(of.readAt) >= readEvery {
		if n.keys == nil {
			n.keys = make(map[pglimit.TopQuery]*topList)
		}
		maps.DeleteFunc(n.keys, func(_ pglimit.TopQuery, l *topList) bool { return time.Since(l.readAt) >= readEvery })
		of = &topList{readAt: time.Now()}
		n.keys[query] = of
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queryTimeout)
		defer cancel()
		of.list, of.err = top.Keys(ctx, query)
	}
	return slices.Clone(of.list), of.err
}

// one row that a query returns, or nil.
func one[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (*T, error) {
	list, err := many[T](ctx, pool, sql, args...)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// many rows that a query returns, whose columns are the fields of a T.
func many[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, postgres.Explain(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	return list, postgres.Explain(err)
}
