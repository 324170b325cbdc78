package strategytest

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// takeGroups decides groups of requests. On a busy machine a call may take nothing, and is repeated.
func (s *suite) takeGroups(session rate.Session, groups ...[]rate.Request) [][]rate.Decision {
	s.Helper()
	strategy := s.knows(aGroup)
	decisions, err := strategy.TakeGroups(s.Context(), session, groups)
	for tries := 0; session.Autocommits() && errors.Is(err, rate.ErrNothingTaken) && tries < 10; tries++ {
		decisions, err = strategy.TakeGroups(s.Context(), session, groups)
	}
	if err != nil {
		s.Fatalf("TakeGroups: %v", err)
	}
	if len(decisions) != len(groups) {
		s.Fatalf("TakeGroups gave %d groups of decisions for %d", len(decisions), len(groups))
	}
	for i := range groups {
		if len(decisions[i]) != len(groups[i]) {
			s.Fatalf("TakeGroups gave %d decisions for %d requests", len(decisions[i]), len(groups[i]))
		}
	}
	return decisions
}

// wantsMember checks the decision of a request that is granted, or whose group is denied: then
// there says whether its bucket has the tokens.
func (s *suite) wantsMember(d rate.Decision, granted, remaining int64, there bool) {
	s.Helper()
	if d.Granted != granted || d.Remaining != remaining || d.Allowed != there || d.Contended || (d.RetryAfter == 0) != there && granted == 0 {
		s.Errorf("granted %d, %d remain, allowed %v, retry after %v; want %d, %d, %v", d.Granted, d.Remaining, d.Allowed, d.RetryAfter, granted, remaining, there)
	}
	if d.At.IsZero() || d.At.Location() != time.UTC {
		s.Errorf("At is %v: want the database's time in UTC", d.At)
	}
}

// Buckets with limits of their own, new and old, in any order: all are taken from, or none.
func groupsAllOrNothing(s *suite) {
	s.knows(aGroup)
	five, two, many := s.needs(slow(5)), s.needs(slow(2)), s.needs(rate.PerHour(1000))
	group := []rate.Request{s.ask("user", two, 1, 1), s.ask("global", many, 10, 10), s.ask("org", five, 2, 2)}
	for left := int64(1); left >= 0; left-- {
		d := s.takeGroups(s.session, group)[0]
		s.wantsMember(d[0], 1, left, true)
		s.wantsMember(d[1], 10, d[1].Remaining, true)
		s.wantsMember(d[2], 2, 1+2*left, true)
	}
	for range 2 { // the user has none, and the organisation not enough
		d := s.takeGroups(s.session, group)[0]
		s.wantsMember(d[0], 0, 0, false)
		s.wantsMember(d[1], 0, d[1].Remaining, true)
		s.wantsMember(d[2], 0, 1, false)
		if d[0].RetryAfter < 999*time.Hour || d[2].RetryAfter < 999*time.Hour {
			s.Errorf("RetryAfter is %v and %v, want 1000h", d[0].RetryAfter, d[2].RetryAfter)
		}
	}
	fresh := []rate.Request{s.ask("new", five, 5, 5), group[0]}
	d := s.takeGroups(s.session, fresh)[0]
	s.wantsMember(d[0], 0, 5, true)
	s.wantsMember(d[1], 0, 0, false)
	s.wants(s.take("org", five, 1, 1), 1, 0)
	s.wants(s.take("new", five, 5, 5), 5, 0)
	if left := s.peek("global", many).Remaining; left < 980 || left > 981 {
		s.Errorf("%d of 1000 remain, want 980", left)
	}
	// Another limit of a bucket: what was used stays used.
	raised := s.takeGroups(s.session, []rate.Request{s.ask("org", slow(8), 2, 2), s.ask("user", slow(3), 1, 1)})[0]
	s.wantsMember(raised[0], 2, 1, true)
	s.wantsMember(raised[1], 1, 0, true)
	other := s.ask("org", five, 1, 1)
	other.Limiter += " per day"
	both := s.takeGroups(s.session, []rate.Request{other, s.ask("third", five, 1, 1)})[0]
	s.wantsMember(both[0], 1, 4, true)
}

// Several groups in one call get what they ask for in their order. A group that is denied takes
// nothing from those after it.
func groupsInTurn(s *suite) {
	s.knows(aGroup)
	limit := s.needs(slow(5))
	s.take("c", limit, 4, 4)
	d := s.takeGroups(s.session,
		[]rate.Request{s.ask("b", limit, 1, 1), s.ask("a", limit, 3, 3)},
		[]rate.Request{s.ask("a", limit, 3, 3), s.ask("b", limit, 4, 4)},
		[]rate.Request{s.ask("c", limit, 1, 1), s.ask("a", limit, 1, 1)},
		[]rate.Request{s.ask("c", limit, 1, 1), s.ask("a", limit, 1, 1)},
		[]rate.Request{s.ask("a", limit, 1, 1), s.ask("b", limit, 4, 4)},
		[]rate.Request{s.ask("d", limit, 6-1, 6-1)},
	)
	for _, want := range []struct {
		group, member      int
		granted, remaining int64
		there              bool
	}{
		{0, 0, 1, 4, true},
		{0, 1, 3, 2, true},
		{1, 0, 0, 2, false},
		{1, 1, 0, 4, true},
		{2, 0, 1, 0, true},
		{2, 1, 1, 1, true},
		{3, 0, 0, 0, false},
		{3, 1, 0, 1, true},
		{4, 0, 1, 0, true},
		{4, 1, 4, 0, true},
		{5, 0, 5, 0, true},
	} {
		s.wantsMember(d[want.group][want.member], want.granted, want.remaining, want.there)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		s.wants(s.take(key, limit, 1, 1), 0, 0)
	}
}

// A group that is denied writes nothing and locks no row, also of buckets that have the tokens.
func groupsDenialWritesNothing(s *suite) {
	s.knows(aGroup)
	limit := s.needs(slow(1))
	s.take("empty", limit, 1, 1)
	denied := [][]rate.Request{
		{s.ask("new", limit, 1, 1), s.ask("empty", limit, 1, 1)},
		{s.ask("empty", limit, 1, 1), s.ask("another", limit, 1, 1)},
	}
	for _, begin := range []string{"", "begin"} {
		w := s.watch()
		for n := range denied {
			w.exec(s, begin)
			w.did = nil
			for _, d := range s.takeGroups(w, denied[:n+1]...) {
				if d[0].Granted+d[1].Granted > 0 {
					s.Fatalf("granted: %+v", d)
				}
			}
			if len(w.did) > 0 {
				s.Errorf("%d groups were denied (%q): it %s", n+1, begin, w.did[0])
			}
			if begin != "" {
				w.exec(s, "rollback")
			}
		}
		w.exec(s, begin)
		w.did = nil
		if s.takeGroups(w, []rate.Request{s.ask("granted "+begin, limit, 1, 1), s.ask("too "+begin, limit, 1, 1)}); len(w.did) == 0 {
			s.Error("a grant: nothing was written")
		}
	}
}

// In a transaction of the caller's, groups are taken if it commits. Its settings stay as they are.
func groupsInTransaction(s *suite) {
	s.knows(aGroup)
	limit := s.needs(slow(2))
	group := []rate.Request{s.ask("b", limit, 1, 1), s.ask("a", limit, 2, 2)}
	for _, keep := range []bool{false, true} {
		tx := s.begin()
		d := s.takeGroups(tx, group, group)
		s.wantsMember(d[0][0], 1, 1, true)
		s.wantsMember(d[0][1], 2, 0, true)
		s.wantsMember(d[1][0], 0, 1, true)
		s.wantsMember(d[1][1], 0, 0, false)
		var settings string
		if err := tx.Row(s.Context(), "select current_setting('synchronous_commit') || ' ' || current_setting('lock_timeout')", nil, &settings); err != nil || settings != "on 0" {
			s.Errorf("synchronous_commit and lock_timeout of the transaction: %s (%v)", settings, err)
		}
		end := tx.Rollback
		if keep {
			end = tx.Commit
		}
		if err := end(s.Context()); err != nil {
			s.Fatal(err)
		}
		if d := s.peek("a", limit); d.Allowed == keep {
			s.Errorf("committed %v: available %v", keep, d.Allowed)
		}
	}
}

// A group that asks for what a group cannot have is an error, and none of its call is taken.
func badGroups(s *suite) {
	strategy := s.knows(aGroup)
	limit := s.needs(slow(5))
	good := []rate.Request{s.ask("good", limit, 5, 5), s.ask("better", limit, 1, 1)}
	for name, spoil := range map[string]func(*rate.Request){
		"a peek":                          func(r *rate.Request) { r.Tokens = 0 },
		"units":                           func(r *rate.Request) { r.Tokens = 2 },
		"ahead":                           func(r *rate.Request) { r.Ahead = time.Second },
		"an ID":                           func(r *rate.Request) { r.ID = "1" },
		"no key":                          func(r *rate.Request) { r.Key = "" },
		"no limiter":                      func(r *rate.Request) { r.Limiter = "" },
		"more than burst":                 func(r *rate.Request) { r.Tokens, r.Unit = 6, 6 },
		"a bucket twice":                  func(r *rate.Request) { r.Key = "other" },
		"another limit in the same call":  func(r *rate.Request) { r.Key, r.Limit = "good", slow(6) },
		"another limit in the same group": func(r *rate.Request) { r.Key, r.Limit = "other", slow(6) },
		"a limit of zero":                 func(r *rate.Request) { r.Limit = rate.Limit{} },
	} {
		bad := []rate.Request{s.ask("other", limit, 1, 1), s.ask("bad", limit, 1, 1)}
		spoil(&bad[1])
		_, err := strategy.TakeGroups(s.Context(), s.session, [][]rate.Request{good, bad})
		var request *rate.RequestError
		var limited *rate.LimitError
		if !errors.As(err, &request) && !errors.As(err, &limited) {
			s.Errorf("%s: the error is %v", name, err)
		}
	}
	s.wants(s.take("good", limit, 5, 5), 5, 0)
	s.wants(s.take("other", limit, 5, 5), 5, 0)
	s.takeGroups(s.session)
	s.takeGroups(s.session, nil)
	s.takeGroups(s.session, nil, []rate.Request{s.ask("k", limit, 1, 1)}, nil)
}

// Groups in every way in which pgx sends a query, and durable ones.
func groupsInEveryMode(s *suite) {
	s.knows(aGroup)
	limit := s.needs(slow(1))
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		session := s.connected(mode)
		group := []rate.Request{s.ask(mode.String()+`'\"%🔑`, limit, 1, 1), s.ask(mode.String(), limit, 1, 1)}
		d := s.takeGroups(session, group, group)
		s.wantsMember(d[0][0], 1, 0, true)
		s.wantsMember(d[1][1], 0, 0, false)
		s.wantsMember(s.takeGroups(session, group)[0][0], 0, 0, false)
	}
	w := s.watch()
	w.exec(s, "set synchronous_commit = local")
	durable := s.ask("durable", limit, 1, 1)
	durable.Durability = rate.Durable
	s.takeGroups(w, []rate.Request{s.ask("relaxed", limit, 1, 1)}, []rate.Request{durable})
	for _, sync := range w.sync {
		if sync == "off" {
			s.Error("one request is durable, and the call is not")
		}
	}
}

// A group waits for a row that somebody else holds locked, and holds no other row meanwhile. An
// impatient call gives up.
func groupsWait(s *suite) {
	strategy := s.knows(aGroup)
	limit := s.needs(slow(100))
	for _, key := range []string{"b", "new"} { // a row that is there, and one that is not committed
		group := []rate.Request{s.ask("a", limit, 1, 1), s.ask(key, limit, 100, 100), s.ask("z", limit, 1, 1)}
		if key == "b" {
			for i := range group {
				s.take(group[i].Key, limit, 1, 1)
			}
			group[1].Tokens, group[1].Unit = 99, 99
		}
		tx := s.begin()
		s.takeAll(tx, s.ask(key, limit, 1, 1))

		impatient := []rate.Request{group[0], group[1]}
		impatient[0].Impatient = true
		_, err := strategy.TakeGroups(s.Context(), s.session, [][]rate.Request{impatient})
		var held *rate.HeldError
		if !errors.Is(err, rate.ErrLocked) || errors.As(err, &held) && (len(held.Held) != 1 || held.Held[0] != rate.Bucket{Limiter: s.limiter, Key: key}) {
			s.Errorf("an impatient group: %v (%+v)", err, held)
		}
		if _, err = strategy.TakeGroups(s.Context(), s.session, [][]rate.Request{group, group}); !errors.Is(err, rate.ErrLocked) {
			s.Errorf("two groups: %v", err)
		}
		answered := make(chan rate.Decision)
		go func() {
			decisions, err := strategy.TakeGroups(s.Context(), s.session, [][]rate.Request{group})
			if err != nil {
				s.Errorf("a patient group: %v", err)
				decisions = [][]rate.Decision{make([]rate.Decision, 3)}
			}
			answered <- decisions[0][1]
		}()
		for range 20 { // long enough for it to wait
			s.take("a", limit, 1, 1)
			select {
			case d := <-answered:
				s.Fatalf("a group was answered while a row was held: %+v", d)
			default:
			}
		}
		if err := tx.Rollback(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.wantsMember(<-answered, group[1].Tokens, 0, true)
	}
}

// 64 callers on two pools take for groups of 2 to 5 of 20 keys, each in an order of its own, alone
// or two groups in a call, in a transaction of their own or of the caller's; others take from
// single keys. Nobody deadlocks, every bucket is exact, and no group is taken in part.
func groupsUnderLoad(s *suite) {
	strategy := s.knows(aGroup)
	const callers, duration = 64, 300 * time.Millisecond
	limits := []rate.Limit{s.needs(rate.Limit{Tokens: 97, Period: 300 * time.Millisecond, Burst: 20}), slow(300)}
	pools := []*pgxpool.Pool{s.pool, s.looksForDeadlocks()}
	var recorded [2][]histories // for each limit, of each caller
	for which := range recorded {
		for range callers {
			recorded[which] = append(recorded[which], make(histories))
		}
	}
	of := func(i int) [2]histories { return [2]histories{recorded[0][i], recorded[1][i]} }
	for key := range 20 { // The rows are there: see noDeadlock.
		r := s.ask(strconv.Itoa(key), limits[key%2], 1, 1)
		s.record(of(0), []rate.Request{r}, s.takeAll(s.session, r))
	}
	var answers, refusals atomic.Int64
	var work sync.WaitGroup
	began := time.Now()
	for i := range callers {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 43))
			for time.Since(began) < duration && !s.Failed() {
				groups := s.randomGroups(random, limits)
				decisions, err := s.takeSomehow(strategy, pools[i%2], i/2%4, groups)
				if err != nil {
					if !s.refused(err) {
						return
					}
					refusals.Add(1)
					continue
				}
				answers.Add(1)
				for g, group := range groups {
					s.record(of(i), group, decisions[g])
				}
			}
		})
	}
	work.Wait()
	for which, limit := range limits {
		if report := s.check(limit, recorded[which]); !report.OK() || report.Granted == 0 {
			s.Errorf("%v: %v", limit, report)
		}
	}
	if refusals.Load() > answers.Load() {
		s.Errorf("%d calls were answered, %d took nothing", answers.Load(), refusals.Load())
	}
}

// randomGroups are for keys of which half have the first limit.
func (s *suite) randomGroups(random *rand.Rand, limits []rate.Limit) (groups [][]rate.Request) {
	for range 1 + random.IntN(2) {
		var group []rate.Request
		for _, key := range random.Perm(20)[:2+random.IntN(4)] {
			n := 1 + random.Int64N(3)
			group = append(group, s.ask(strconv.Itoa(key), limits[key%2], n, n))
		}
		groups = append(groups, group)
	}
	return groups
}

// takeSomehow takes for the groups, in a transaction of their own or of the caller's, or for each
// request by itself.
func (s *suite) takeSomehow(strategy units, pool *pgxpool.Pool, how int, groups [][]rate.Request) (decisions [][]rate.Decision, err error) {
	switch how {
	case 0, 1:
		return strategy.TakeGroups(s.Context(), session.OnPool(pool), groups)
	case 2:
		err = pgx.BeginFunc(s.Context(), pool, func(tx pgx.Tx) error {
			decisions, err = strategy.TakeGroups(s.Context(), session.InTx(tx), groups)
			return err
		})
		return decisions, err
	}
	for _, group := range groups {
		alone, err := strategy.Take(s.Context(), session.OnPool(pool), group[:1])
		if err != nil {
			return nil, err
		}
		decisions = append(decisions, alone)
	}
	return decisions, nil
}

// record a group: grants of all, or denials by the buckets that lacked tokens.
func (s *suite) record(of [2]histories, group []rate.Request, decisions []rate.Decision) {
	s.Helper()
	granted, lacking := 0, 0
	for i, r := range group[:len(decisions)] {
		d := decisions[i]
		switch {
		case d.Granted == r.Tokens:
			granted++
		case d.Granted != 0:
			s.Errorf("%d of %d tokens granted", d.Granted, r.Tokens)
		case d.Allowed:
			continue
		default:
			lacking++
		}
		which := 0
		if r.Limit.Burst == 300 {
			which = 1
		}
		of[which].record(r, d)
	}
	if granted > 0 && granted < len(decisions) || granted == 0 && lacking == 0 {
		s.Errorf("%d of %d requests of a group were granted, %d had no tokens: %+v", granted, len(decisions), lacking, decisions)
	}
}
