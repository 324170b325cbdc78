package strategytest

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// joins checks that a call joins the caller's transaction: what it does is gone after a rollback
// and there after a commit, and the transaction keeps its settings and has no savepoint of ours.
func (s *suite) joins(call func(Tx), look func(committed bool)) {
	s.Helper()
	for _, commit := range []bool{false, true} {
		tx := s.begin()
		settings := func() (all string) {
			s.Helper()
			err := tx.Row(s.Context(), `select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
				where name in ('synchronous_commit', 'search_path', 'lock_timeout', 'statement_timeout', 'transaction_isolation')`, nil, &all)
			if err != nil {
				s.Fatal(err)
			}
			return all
		}
		before := settings()
		call(tx)
		if after := settings(); after != before {
			s.Errorf("settings were %s, are %s", before, after)
		}
		end := tx.Commit
		if !commit {
			if _, err := tx.Exec(s.Context(), "rollback to savepoint pglimit"); err == nil {
				s.Error("a savepoint was left behind")
			}
			end = tx.Rollback
		}
		if err := end(s.Context()); err != nil {
			s.Fatal(err)
		}
		look(commit)
	}
}

func callersTransaction(s *suite) {
	limit := s.needs(slow(1))
	keys := []string{"k", "a", "b"}
	groups, ids := s.strategy.Check(aGroup()) == nil, s.strategy.Check(anID()) == nil
	if groups {
		keys = append(keys, "c", "d")
	}
	if ids {
		keys = append(keys, "e")
	}
	named, inside := s.named("id", "e", limit, 1), rate.Decision{}
	s.joins(func(tx Tx) {
		s.wants(s.takeAll(tx, s.ask("k", limit, 1, 1))[0], 1, 0)
		s.wants(s.takeAll(tx, s.ask("k", limit, 1, 1))[0], 0, 0)
		if several := s.takeAll(tx, s.ask("b", limit, 1, 1), s.ask("a", limit, 1, 1)); !several[0].Allowed || !several[1].Allowed {
			s.Errorf("several keys in a transaction: %+v", several)
		}
		if groups {
			group := []rate.Request{s.ask("d", limit, 1, 1), s.ask("c", limit, 1, 1)}
			d := s.takeAll(tx, grouped(group, group)...)
			s.wantsMember(d[0], 1, 0, true)
			s.wantsMember(d[3], 0, 0, false)
		}
		if ids {
			before := inside
			if inside = s.once(tx, named); inside == before || inside != s.once(tx, named) {
				s.Errorf("an ID was rolled back, or is asked again: %+v, then %+v", before, inside)
			}
		}
	}, func(committed bool) {
		if ids && committed && s.once(s.session, named) != inside {
			s.Error("after the commit, the ID gets another answer")
		}
		for _, key := range keys {
			if d := s.peek(key, limit); d.Allowed == committed {
				s.Errorf("committed %v: key %s is available: %v", committed, key, d.Allowed)
			}
		}
	})
}

// A connection of the caller's keeps its settings, and a transaction that was begun on it by a
// plain statement goes on.
func callersConnection(s *suite) {
	limit := s.needs(slow(1))
	conn, release, err := s.driver.Conn(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	defer release()
	s.wants(s.takeAll(conn, s.ask("m", limit, 1, 1))[0], 1, 0)
	s.wants(s.takeAll(conn, s.ask("m", limit, 1, 1))[0], 0, 0)
	for _, sql := range []string{"begin", "rollback"} {
		if _, err := conn.Exec(s.Context(), sql); err != nil {
			s.Fatal(err)
		}
		if sql == "begin" { // begun by a plain statement
			s.wants(s.takeAll(conn, s.ask("n", limit, 1, 1))[0], 1, 0)
			s.takeAll(conn, s.ask("o", limit, 1, 1), s.ask("p", limit, 1, 1))
			if conn.Autocommits() {
				s.Error("the transaction has ended after a take")
			}
		}
	}
	for _, key := range []string{"n", "o", "p"} {
		s.wants(s.takeAll(conn, s.ask(key, limit, 1, 1))[0], 1, 0)
	}
	var commit string
	if err := conn.Row(s.Context(), "show synchronous_commit", nil, &commit); err != nil || commit == "off" {
		s.Errorf("synchronous_commit of the connection is %s (%v)", commit, err)
	}
}

func cancelled(s *suite) {
	limit := s.needs(slow(1))
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if _, err := s.strategy.Take(ctx, s.session, []rate.Request{s.ask("k", limit, 1, 1)}); !errors.Is(err, context.Canceled) {
		s.Errorf("the error is %v, want context.Canceled", err)
	}
	s.wants(s.take("k", limit, 1, 1), 1, 0)
}

// Cancelled between two requests of a call in the caller's transaction, which goes on.
func cancelledInTransaction(s *suite) {
	limit := s.needs(slow(1))
	tx := s.begin()
	for statements := range 8 {
		ctx, cancel := context.WithCancel(s.Context())
		_, err := s.strategy.Take(ctx, &interrupted{Session: tx, after: statements, cancel: cancel}, []rate.Request{s.ask("l", limit, 1, 1), s.ask("m", limit, 1, 1)})
		cancel()
		if err == nil {
			break
		}
		if d := s.takeAll(tx, s.ask("l", limit, 0, 1), s.ask("m", limit, 0, 1)); !d[0].Allowed || !d[1].Allowed {
			s.Errorf("a Take that was cut off after %d statements, and failed, took tokens all the same: %+v", statements, d)
		}
	}
}

// interrupted is a session whose caller gives up after that many statements have been sent.
type interrupted struct {
	rate.Session
	after  int
	cancel context.CancelFunc
}

func (i *interrupted) count() {
	if i.after--; i.after < 0 {
		i.cancel()
	}
}

func (i *interrupted) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	i.count()
	return i.Session.Exec(ctx, sql, args...)
}

func (i *interrupted) Row(ctx context.Context, sql string, args []any, into ...any) error {
	i.count()
	return i.Session.Row(ctx, sql, args, into...)
}

func (i *interrupted) Pipeline(ctx context.Context, statements ...rate.Statement) (int, error) {
	i.count()
	return i.Session.Pipeline(ctx, statements...)
}

func (i *interrupted) OneConnection(_ context.Context, f func(rate.Session) error) error { return f(i) }

func durability(s *suite) {
	limit := s.needs(slow(1))
	for _, d := range []rate.Durability{rate.Relaxed, rate.Durable} {
		r := s.ask(d.String(), limit, 1, 1)
		r.Durability = d
		s.wants(s.takeAll(s.session, r)[0], 1, 0)
		s.wants(s.takeAll(s.session, r)[0], 0, 0)
	}
}

func queryModes(s *suite) {
	limit := s.needs(slow(1))
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		session := s.connected(mode)
		key := mode.String() + `'\"%🔑`
		if d := s.takeAll(session, s.ask(key, limit, 0, 1))[0]; !d.Allowed {
			s.Errorf("%v: peek at a full bucket: %+v", mode, d)
		}
		s.wants(s.takeAll(session, s.ask(key, limit, 1, 1))[0], 1, 0)
		s.wants(s.takeAll(session, s.ask(key, limit, 1, 1))[0], 0, 0)
		if several := s.takeAll(session, s.ask(key+"b", limit, 1, 1), s.ask(key+"a", limit, 1, 1)); !several[0].Allowed || !several[1].Allowed {
			s.Errorf("%v: several keys: %+v", mode, several)
		}
		s.capabilitiesIn(mode, session, key, limit)
	}
}

func (s *suite) capabilitiesIn(mode pgx.QueryExecMode, session rate.Session, key string, limit rate.Limit) {
	s.Helper()
	if able, is := s.strategy.(rate.GiveBacker); is {
		returned := s.ask(key+"c", limit, 1, 1)
		granted := s.takeAll(session, returned)[0]
		if err := able.GiveBack(s.Context(), session, []rate.Refund{{Request: returned, At: granted.At}}); err != nil {
			s.Errorf("%v: GiveBack: %v", mode, err)
		}
		s.wants(s.takeAll(session, returned)[0], 1, 0)
	}
	if able, is := s.strategy.(rate.Resetter); is {
		if err := able.Reset(s.Context(), session, s.limiter, key); err != nil {
			s.Errorf("%v: Reset: %v", mode, err)
		}
	}
	if s.strategy.Check(aGroup()) == nil {
		group := []rate.Request{s.ask(key+"e", limit, 1, 1), s.ask(key+"f", limit, 1, 1)}
		d := s.takeAll(session, grouped(group, group)...)
		s.wantsMember(d[0], 1, 0, true)
		s.wantsMember(d[3], 0, 0, false)
	}
	if s.strategy.Check(anID()) == nil {
		r := s.named(key, key, limit, 1)
		if first, again := s.once(session, r), s.once(session, r); first != again || !first.Allowed {
			s.Errorf("%v: %+v, then %+v", mode, first, again)
		}
	}
	if s.strategy.Check(aBlock()) == nil {
		if d := s.blockOn(session, s.ask(key, limit, 1, 1), blocking(1)); !d.Blocked {
			s.Errorf("%v: %+v", mode, d)
		}
		if d := s.blockOn(session, s.ask(key, limit, 0, 1), blocking(1)); !d.Blocked {
			s.Errorf("%v: a peek: %+v", mode, d)
		}
	}
	if _, is := s.strategy.(rate.Leaser); is && s.strategy.Check(&rate.Request{Limit: slow(10)}) == nil {
		ten, leased := slow(10), key+"d"
		lease := s.leaseOn(session, s.leaseOf(leased, ten, 4))
		s.has(leased, ten, 6)
		s.leaseOn(session, s.settling(leased, ten, lease, 1))
		s.has(leased, ten, 9)
	}
	if able, is := s.strategy.(rate.AllResetter); is {
		for i := range 2 {
			if removed, err := able.ResetAll(s.Context(), session, s.limiter); err != nil || i == 1 && removed != 1 {
				s.Errorf("%v: ResetAll of one key: %d, %v", mode, removed, err)
			}
			s.wants(s.takeAll(s.session, s.ask(key, limit, 1, 1))[0], 1, 0)
		}
	}
	if able, is := s.strategy.(rate.Sweeper); is {
		if _, err := able.Sweep(s.Context(), session, 0, 10); err != nil {
			s.Errorf("%v: Sweep: %v", mode, err)
		}
	}
}

// connected is a session on a connection of its own, on which queries are sent that way.
func (s *suite) connected(mode pgx.QueryExecMode) rate.Session {
	s.Helper()
	config := s.pool.Config().ConnConfig
	config.DefaultQueryExecMode = mode
	config.RuntimeParams["datestyle"] = "German, DMY" // no mode depends on how times are written
	conn, err := pgx.ConnectConfig(s.Context(), config)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close(context.WithoutCancel(s.Context())) })
	return session.OnConn(conn)
}

// sweepAll walks the whole table.
func (s *suite) sweepAll() {
	s.Helper()
	var from rate.Cursor
	for {
		swept, err := capable[rate.Sweeper](s).Sweep(s.Context(), s.session, from, 100)
		if err != nil {
			s.Fatal(err)
		}
		if swept.Done {
			return
		}
		if swept.Next <= from {
			s.Fatalf("the walk stands still at %d", from)
		}
		from = swept.Next
	}
}

// A sweep removes buckets that have been full for a while, and the suite cannot wait that
// long. It can only check that a sweep changes no decision.
func sweep(s *suite) {
	limit := s.needs(slow(1))
	s.take("used", limit, 1, 1)
	if s.strategy.Check(&rate.Request{Limit: slow(5)}) == nil {
		s.take("half", slow(5), 2, 2)
	}
	s.sweepAll()
	s.wants(s.take("used", limit, 1, 1), 0, 0)
	s.wants(s.take("new", limit, 1, 1), 1, 0)
	if s.strategy.Check(&rate.Request{Limit: slow(5)}) == nil {
		s.wants(s.take("half", slow(5), 5, 1), 3, 0)
	}
}
