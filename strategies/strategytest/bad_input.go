package strategytest

import (
	"slices"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// What makes no sense is an error that names the field, as it is in memory, and changes nothing.
func badInput(s *suite) {
	w := s.walk(s.session, 4)
	w.rounds(1)
	b := w.buckets[0]
	good := rate.Request{Limiter: b.Limiter, Key: b.Key, Limit: b.limits[0], Tokens: 1, Unit: 1}
	w.badRequests(good)
	if _, is := s.strategy.(rate.Resetter); is {
		refuses(w, good, func(strategy rate.Strategy, r rate.Request) error {
			return strategy.(rate.Resetter).Reset(s.Context(), s.session, r.Limiter, r.Key)
		}, spoils(func(r *rate.Request, key string) { r.Key = key }, "", "a\x00b"))
	}
	if _, is := s.strategy.(rate.AllResetter); is {
		refuses(w, "", func(strategy rate.Strategy, limiter string) error {
			_, err := strategy.(rate.AllResetter).ResetAll(s.Context(), s.session, limiter)
			return err
		}, spoils(func(r *string, limiter string) { *r = limiter }, "", "\x00"))
	}
	if _, is := s.strategy.(rate.GiveBacker); is {
		refund := rate.Refund{Request: good, At: w.at}
		refuses(w, refund, func(strategy rate.Strategy, r rate.Refund) error {
			return strategy.(rate.GiveBacker).GiveBack(s.Context(), s.session, []rate.Refund{refund, r})
		}, slices.Concat(
			spoils(func(r *rate.Refund, key string) { r.Key = key }, "", "\x00"),
			spoils(func(r *rate.Refund, limiter string) { r.Limiter = limiter }, ""),
			spoils(func(r *rate.Refund, n int64) { r.Tokens = n }, -1),
		))
	}
	if _, is := s.strategy.(rate.Leaser); is {
		lease := rate.LeaseRequest{Limiter: b.Limiter, Key: b.Key, Limit: good.Limit, Tokens: 1, Share: 1, TTL: time.Second, Settle: rate.Lease{Tokens: 4}}
		refuses(w, lease, func(strategy rate.Strategy, r rate.LeaseRequest) error {
			_, err := strategy.(rate.Leaser).Lease(s.Context(), s.session, r)
			return err
		}, slices.Concat(
			spoils(func(r *rate.LeaseRequest, key string) { r.Key = key }, "", "k\x00"),
			spoils(func(r *rate.LeaseRequest, limiter string) { r.Limiter = limiter }, ""),
			spoils(func(r *rate.LeaseRequest, limit rate.Limit) { r.Limit = limit }, rate.PerSecond(0), slow(-1)),
			spoils(func(r *rate.LeaseRequest, d rate.Durability) { r.Durability = d }, 7),
			spoils(func(r *rate.LeaseRequest, n int64) { r.Tokens = n }, -1),
			spoils(func(r *rate.LeaseRequest, n int64) { r.Share = n }, -1, 0),
			spoils(func(r *rate.LeaseRequest, d time.Duration) { r.TTL = d }, -time.Second, 0, time.Millisecond-1, time.Hour+1),
			spoils(func(r *rate.LeaseRequest, n int64) { r.Spent = n }, -1, 5),
		))
	}
	w.rounds(1)
}

// spoils set something of a call to each of the values.
func spoils[R, T any](set func(*R, T), values ...T) (all []func(*R)) {
	for _, value := range values {
		all = append(all, func(r *R) { set(r, value) })
	}
	return all
}

// refuses checks that each call is refused as it is in memory.
func refuses[R any](w *walk, good R, call func(rate.Strategy, R) error, spoils []func(*R)) {
	w.Helper()
	for _, spoil := range spoils {
		bad := good
		spoil(&bad)
		if got, want := call(w.strategy, bad), call(w.memory, bad); !alike(got, want) {
			w.Errorf("%+v: the error is %v, want %v", bad, got, want)
		}
	}
}

// badRequests are requests with and without an ID and a Block, alone and beside others, by themselves and in a
// group. Some of them are good.
func (w *walk) badRequests(good rate.Request) {
	w.Helper()
	named, other, third := good, good, good
	named.ID, named.IDTTL, other.Key, third.Key = "id", time.Hour, other.Key+"'", third.Key+"''"
	longest, long := rate.MaxWindow-good.Limit.Window(), strings.Repeat("k", rate.MaxKeyBytes+1)
	var far []time.Duration
	if w.fillsAsATokenBucket() { // else, how many of a thousand tokens are due within that time is another rule's business
		far = append(far, longest)
	}
	for _, spoil := range slices.Concat(
		spoils(func(r *rate.Request, name string) { r.Key = name }, "", "a\x00b", "\xff", long, other.Key),
		spoils(func(r *rate.Request, name string) { r.Limiter = name }, "", "\x00", long),
		spoils(func(r *rate.Request, name string) { r.ID = name }, "", "a\x00", "\xff", long),
		spoils(func(r *rate.Request, ttl time.Duration) { r.IDTTL = ttl }, -1, 0, rate.MinIDTTL-1, rate.MaxIDTTL+1),
		spoils(func(r *rate.Request, n int64) { r.Tokens = n }, -1, 0, 2),
		spoils(func(r *rate.Request, n int64) { r.Unit = n }, -1, 0),
		spoils(func(r *rate.Request, n int64) { r.Tokens, r.Unit = n, n }, -1, 2, good.Limit.Burst+1),
		spoils(func(r *rate.Request, l rate.Limit) { r.Limit = l }, rate.Limit{}, rate.PerSecond(0), slow(-1), rate.Limit{Tokens: 2, Period: 1, Burst: 1}, rate.Limit{Tokens: 1, Burst: 1}),
		spoils(func(r *rate.Request, l rate.Limit) { r.Key, r.Limit = other.Key, l }, slow(6)),
		spoils(func(r *rate.Request, d rate.Durability) { r.Durability = d }, 7),
		spoils(func(r *rate.Request, ahead time.Duration) { r.Ahead = ahead }, -1, time.Second, longest, longest+1, rate.MaxWindow),
		spoils(func(r *rate.Request, ahead time.Duration) { r.Key, r.Tokens, r.Ahead = "far", 1000, ahead }, far...),
		spoils(func(r *rate.Request, n int64) { r.Tokens, r.Ahead = n, 1 }, 0),
		spoils(func(r *rate.Request, n int64) { r.Block.After = n }, -1, 0),
		spoils(func(r *rate.Request, d time.Duration) { r.Block.Within = d }, 0, rate.MaxBlock+1),
		spoils(func(r *rate.Request, d time.Duration) { r.Block.For = d }, 0, rate.MaxBlock+1),
		spoils(func(r *rate.Request, d time.Duration) { r.Block.Max = d }, time.Hour-1, rate.MaxBlock+1),
		spoils(func(r *rate.Request, d time.Duration) { r.Block.Forget = d }, -1, rate.MaxBlock+1),
		spoils(func(r *rate.Request, b rate.Block) { *r.Block = b }, rate.Block{}, rate.Block{After: 1, Within: rate.MaxBlock, For: rate.MaxBlock, Max: rate.MaxBlock, Forget: rate.MaxBlock}),
	) {
		for _, blocks := range []bool{false, true} {
			for _, r := range []rate.Request{good, named} {
				block := blocking(1)
				r.Block = &block
				if spoil(&r); !blocks {
					r.Block = nil
				}
				if r.ID != "" || r.Block != nil {
					w.asks(r)
				}
				w.asks(other, r)
				w.asks(grouped([]rate.Request{third}, []rate.Request{other, r})...)
			}
		}
	}
}
