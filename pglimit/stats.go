package pglimit

import (
	"iter"
	"reflect"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/adjust"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Stats counts the answers that a [Limiter] gave since New, also through InTx and OnConn, and what they cost. An
// answer of DoAll counts as one. Each field's tag says what it counts. To export them, range over [Stats.All].
type Stats struct {
	Allowed   BySource `name:"allowed" label:"source" help:"Requests granted, and peeks that found the tokens, by where the decision came from."`
	Denied    BySource `name:"denied" label:"source" help:"Requests denied, and peeks that did not find the tokens, by where the decision came from."`
	Contended int64    `name:"contended" help:"Requests denied because somebody else held the row locked. They also count as denied."`
	Blocked   int64    `name:"blocked" help:"Requests denied, and peeks, because the key was blocked. They also count as denied."`
	Failed    ByCause  `name:"failed" label:"cause" help:"Requests of which no decision was known. If OnError decided, they also count as allowed or denied from fallback."`
	Canceled  int64    `name:"canceled" help:"Requests whose callers cancelled them before the answer."`

	Ruled          ByAction `name:"ruled" label:"action" help:"Requests for which a rule of the table pglimit.limits held, by its action. Those with observe are counted beside what was decided."`
	NewKeys        int64    `name:"new_keys" help:"Keys without a row that Config.NewKeys let through. Requests for those that it did not let through count as denied, or allowed, from new_keys."`
	ObservedDenied int64    `name:"observed_denied" help:"Requests that a rule which is only observed would have denied."`
	LimitsVersion  int64    `name:"limits_version" kind:"gauge" plus:"max" help:"The version of the table pglimit.limits that holds. It grows with every change."`
	LimitsAge      int64    `name:"limits_age_seconds" kind:"gauge" plus:"max" help:"How long ago the table pglimit.limits was read, in whole seconds. If it never was, since the first try."`

	LimitsFailing int64 `name:"limits_failing_rules" kind:"gauge" plus:"max" help:"Rules of the table pglimit.limits that fail each request for which they hold, because they cannot be read, or could not be kept in the last minute."`

	LiveInstances   int64 `name:"live_instances" kind:"gauge" plus:"max" help:"Live instances of the limiter, this one included, when they were last counted. While this one is not counted, 0."`
	AdjustedPercent int64 `name:"adjusted_percent" kind:"gauge" plus:"max" help:"How much of each limit Config.Adjust takes away now, in percent."`
	AdjustFailed    int64 `name:"adjust_failed" help:"Calls of Config.Adjust that panicked, took too long or returned no share."`

	Waiting int64 `name:"waiting" kind:"gauge" help:"Requests that wait for an answer now."`
	Asleep  int64 `name:"asleep" kind:"gauge" help:"Callers of Wait whose tokens are reserved and still to come."`
	Open    int64 `name:"breaker_open" kind:"gauge" help:"1 while the circuit breaker is open and requests fail at once, else 0."`

	RoundTrips int64 `name:"round_trips" help:"Calls of the strategy to decide requests."`
	Requests   int64 `name:"requests_sent" help:"Requests sent in these calls. Identical requests of several callers are sent as one."`
	LeaseTrips int64 `name:"lease_trips" help:"Calls that fetched or settled a lease."`

	StraightTrips int64 `name:"straight_trips" help:"Calls of the strategy that went straight to the node of Config.Nodes that has the key. Others went through the coordinator."`

	GrantedTokens  int64 `name:"granted_tokens" help:"Tokens granted that the limiter's own limit bounds: at once, by Postgres or a lease, and not in a transaction, to a request with an ID, to a group or under another limit."`
	RefundedTokens int64 `name:"refunded_tokens" help:"Tokens that Refund and Settle gave back."`
	LeasedTokens   int64 `name:"leased_tokens" help:"Tokens that leases set aside."`
	UnspentTokens  int64 `name:"unspent_tokens" help:"Leased tokens that were given back or expired unspent."`
	PassedOnTokens int64 `name:"passed_on_tokens" help:"Tokens granted to callers who had left, and passed on to others."`
	GivenBack      int64 `name:"given_back_tokens" help:"Tokens granted to callers who had left, and given back, if nothing was reserved behind them by others."`
	LostTokens     int64 `name:"lost_tokens" help:"Tokens that could not be given back, or that a failed call may have taken for callers whose context had ended."`
}

// BySource is indexed by [Source].
type BySource [len(rate.Sources)]int64

// ByCause is indexed by [Cause].
type ByCause [len(causes)]int64

// ByAction is indexed by [Action].
type ByAction [len(rate.Actions)]int64

// Total of all sources.
func (b BySource) Total() int64 { return sum(b[:]) }

// Total of all causes.
func (b ByCause) Total() int64 { return sum(b[:]) }

func sum(numbers []int64) (total int64) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// Stat is one number of [Stats].
type Stat struct {
	Name  string // in lower case with underscores
	Help  string // what it counts, in a sentence
	Gauge bool   // the value can fall; else it only grows
	Value int64

	// Label and LabelValue, such as "source" and "memory", tell apart the numbers of one
	// Name. They are empty if there is only one number.
	Label, LabelValue string
}

// All returns all numbers, in the order of the fields.
func (s Stats) All() iter.Seq[Stat] {
	return func(yield func(Stat) bool) {
		fields := reflect.ValueOf(s)
		for i := range fields.NumField() {
			tag := fields.Type().Field(i).Tag
			stat := Stat{Name: tag.Get("name"), Help: tag.Get("help"), Gauge: tag.Get("kind") == "gauge", Label: tag.Get("label")}
			for label, value := range numbers(fields.Field(i)) {
				stat.LabelValue, stat.Value = label, value.Int()
				if !yield(stat) {
					return
				}
			}
		}
	}
}

// numbers of a field, each with the value of its label.
func numbers(field reflect.Value) iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) {
		if field.Kind() != reflect.Array {
			yield("", field)
			return
		}
		for i := range field.Len() {
			label := Cause(i).String()
			switch field.Type() {
			case reflect.TypeFor[BySource]():
				label = Source(i).String()
			case reflect.TypeFor[ByAction]():
				label = Action(i).String()
			}
			if !yield(label, field.Index(i)) {
				return
			}
		}
	}
}

// Since returns what was counted after before. Gauges are as they are now.
func (s Stats) Since(before Stats) Stats { return s.combine(before, -1) }

// Plus returns the sum with the numbers of another Limiter. Of LimitsVersion, LimitsAge, LimitsFailing, LiveInstances
// and AdjustedPercent it is the greater one.
func (s Stats) Plus(other Stats) Stats { return s.combine(other, 1) }

func (s Stats) combine(other Stats, times int64) Stats {
	sum, added := reflect.ValueOf(&s).Elem(), reflect.ValueOf(&other).Elem()
	for i := range sum.NumField() {
		if times < 0 && sum.Type().Field(i).Tag.Get("kind") == "gauge" {
			continue
		}
		if sum.Type().Field(i).Tag.Get("plus") == "max" {
			sum.Field(i).SetInt(max(sum.Field(i).Int(), added.Field(i).Int()))
			continue
		}
		if sum.Field(i).Kind() == reflect.Int64 {
			sum.Field(i).SetInt(sum.Field(i).Int() + times*added.Field(i).Int())
			continue
		}
		for j := range sum.Field(i).Len() {
			sum.Field(i).Index(j).SetInt(sum.Field(i).Index(j).Int() + times*added.Field(i).Index(j).Int())
		}
	}
	return s
}

// Stats returns the counts so far. They are read one after another, so they may disagree by
// a few while requests are under way.
func (l *Limiter) Stats() Stats {
	if l.parent != nil {
		return l.parent.Stats()
	}
	c := l.counters
	s := Stats{
		Contended:      c.contended.Load(),
		Blocked:        c.blocked.Load(),
		ObservedDenied: c.observedDenied.Load(),
		Canceled:       c.canceled.Load(),
		Waiting:        l.waiting.Size(),
		Asleep:         l.queue.Len(),
		RoundTrips:     c.roundTrips.Load(),
		Requests:       c.requests.Load(),
		StraightTrips:  c.straightTrips.Load(),

		GrantedTokens:  c.grantedTokens.Load(),
		RefundedTokens: c.refundedTokens.Load(),
	}
	for i := range c.allowed {
		s.Allowed[i], s.Denied[i] = c.allowed[i].Load(), c.denied[i].Load()
	}
	for i := range c.ruled {
		s.Ruled[i] = c.ruled[i].Load()
	}
	if l.config.Limits != nil {
		status := l.config.Limits.Status()
		s.LimitsVersion, s.LimitsAge, s.LimitsFailing = status.Version, int64(status.Age/time.Second), int64(len(status.Failing))
	}
	live, _ := l.rules.Live()
	s.LiveInstances = int64(live)
	s.AdjustedPercent = adjust.Whole - l.share.Percent()
	if l.share != nil {
		s.AdjustFailed = l.share.Failures.Load()
	}
	if l.newKeys != nil {
		s.NewKeys = l.newKeys.Through.Load()
	}
	for i := range c.failed {
		s.Failed[i] = c.failed[i].Load()
	}
	if l.circuit.Open() {
		s.Open = 1
	}
	if l.leases != nil {
		of := &l.leases.Stats
		s.LeaseTrips, s.LeasedTokens, s.UnspentTokens = of.Trips.Load(), of.LeasedTokens.Load(), of.UnspentTokens.Load()
	}
	gone := []*wait.Stats{&l.queue.Stats} // of callers who had left
	if l.combiner != nil {
		gone = append(gone, &l.combiner.Stats)
	}
	for _, of := range gone {
		s.PassedOnTokens += of.PassedOn.Load()
		s.GivenBack += of.GivenBack.Load()
		s.LostTokens += of.Lost.Load()
	}
	return s
}
