package live

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// panel is one of the page's pictures.
type panel struct {
	ID      string
	Title   string
	Caption string // what to see, and what would be bad
	Unit    string // of the numbers: see the units of page.js
	Log     bool   // the vertical scale
	Lines   []string
	Limit   string // what the last line is, if no other may cross it: it is drawn thick

	values func(now, before *reading) []*float64 // one per line. Nil: not known
}

// reading is all that is known at one moment.
type reading struct {
	at        time.Time
	instances []pglimit.Stats // of all limiters of an instance
	recorded                  // by all instances, since the reading before
	busiest   int64           // tokens of the busiest user in ten seconds
	database  *database       // nil: Postgres did not answer
}

// all instances together.
func (r *reading) all() (sum pglimit.Stats) {
	for _, stats := range r.instances {
		sum = sum.Plus(stats)
	}
	return sum
}

func known[T int64 | float64](values ...T) []*float64 {
	var list []*float64
	for _, v := range values {
		list = append(list, new(float64(v)))
	}
	return list
}

// perSecond is how fast counters grew.
func perSecond(now, before *reading, counts ...int64) []*float64 {
	seconds := now.at.Sub(before.at).Seconds()
	var rates []*float64
	for _, n := range counts {
		rates = append(rates, new(float64(max(0, n))/seconds)) // a crash of Postgres resets its counters
	}
	return rates
}

// panels in the order of the page.
func panels(instances []string, limit pglimit.Limit) []panel {
	all := []panel{
		{
			Title: "Requests granted", Unit: "per second", Lines: instances,
			Caption: "Each user has one bucket per endpoint, however many instances there are.",
			values: func(now, before *reading) []*float64 {
				var grants []int64
				for i := range now.instances {
					grants = append(grants, now.instances[i].Since(before.instances[i]).Allowed.Total())
				}
				return perSecond(now, before, grants...)
			},
		},
		{
			Title: "Requests denied", Unit: "per second", Lines: []string{"by Postgres", "from memory"},
			Caption: "Most denials need no database: an instance remembers when the next token comes.",
			values: func(now, before *reading) []*float64 {
				denied := now.all().Since(before.all()).Denied
				return perSecond(now, before, denied[pglimit.FromDatabase], denied.Total()-denied[pglimit.FromDatabase])
			},
		},
		{
			Title: "Requests without a decision", Unit: "per second", Lines: []string{"failed", "canceled by the caller"},
			Caption: "There should be none. Failed requests are answered 503.",
			values: func(now, before *reading) []*float64 {
				s := now.all().Since(before.all())
				return perSecond(now, before, s.Failed.Total(), s.Canceled)
			},
		},
		{
			Title: "Time to an answer", Unit: "seconds", Log: true, Lines: []string{"grant, p50", "grant, p99", "denial, p99"},
			Caption: "In the HTTP handler. A line that keeps rising is a queue that grows. Bad if refusing a request costs more than serving it.",
			values: func(now, _ *reading) []*float64 {
				return []*float64{percentile(now.grants, 50), percentile(now.grants, 99), percentile(now.denials, 99)}
			},
		},
		{
			Title: "Busiest user, in 10 s", Unit: "requests granted", Lines: []string{"granted", "the limit"}, Limit: "the limit",
			Caption: "The most that any user got at one endpoint, by the database's clock, at all instances together. The limit: a burst of 1, and 5 in 10 s.",
			values: func(now, _ *reading) []*float64 {
				return known(now.busiest, allowed(limit))
			},
		},
		{
			Title: "Requests and round trips", Unit: "per second", Lines: []string{"requests", "round trips"},
			Caption: "Memory and combining keep the calls of Postgres below the requests.",
			values: func(now, before *reading) []*float64 {
				s := now.all().Since(before.all())
				return perSecond(now, before, s.Allowed.Total()+s.Denied.Total()+s.Failed.Total(), s.RoundTrips)
			},
		},
		{
			Title: "Time of a round trip", Unit: "seconds", Log: true, Lines: []string{"p50", "p99"},
			Caption: "With the wait for a connection. If it is much shorter than the time to a grant, requests wait for their turn.",
			values: func(now, _ *reading) []*float64 {
				return []*float64{percentile(now.trips, 50), percentile(now.trips, 99)}
			},
		},
		{
			Title: "Connections", Unit: "connections", Lines: []string{"open", "busy"},
			Caption: "To this database. Combining keeps few of them busy, however many requests there are.",
			values: ofDatabase(2, func(now, _ *reading) []*float64 {
				return known(now.database.Connections, now.database.Busy)
			}),
		},
		{
			Title: "Locks", Unit: "number", Lines: []string{"waiting for a lock", "deadlocks"},
			Caption: "Sessions that wait now, and deadlocks in this interval. There should be no deadlock.",
			values: ofDatabase(2, func(now, before *reading) []*float64 {
				return known(now.database.Waiting, max(0, now.database.Deadlocks-before.database.Deadlocks))
			}),
		},
		{
			Title: "Rows", Unit: "rows", Lines: []string{"live", "dead"},
			Caption: "The cleanup removes buckets that have been full for a minute, autovacuum the dead rows that updates leave.",
			values: ofDatabase(2, func(now, _ *reading) []*float64 {
				return known(now.database.Live, now.database.Dead)
			}),
		},
		{
			Title: "Writes", Unit: "rows per second", Lines: []string{"updates", "HOT updates"},
			Caption: "They follow the grants: a denial writes nothing. HOT updates leave the indexes alone.",
			values: ofDatabase(2, func(now, before *reading) []*float64 {
				n, b := now.database, before.database
				return perSecond(now, before, n.Updates-b.Updates, n.HOTUpdates-b.HOTUpdates)
			}),
		},
		{
			Title: "Write-ahead log", Unit: "kB per second", Lines: []string{"of the whole server"},
			Caption: "What grants write, and what replicas receive. A denial adds nothing.",
			values: ofDatabase(1, func(now, before *reading) []*float64 {
				return perSecond(now, before, (now.database.WAL-before.database.WAL)/1000)
			}),
		},
	}
	return all
}

// ofDatabase returns no number if Postgres did not answer.
func ofDatabase(lines int, values func(now, before *reading) []*float64) func(now, before *reading) []*float64 {
	return func(now, before *reading) []*float64 {
		if now.database == nil || before.database == nil {
			return make([]*float64, lines)
		}
		return values(now, before)
	}
}
