package strategytest

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func decidesAsInMemory(s *suite) {
	w := s.walk(s.session, 1)
	w.asks() // for nothing
	w.rounds(25)
	if able, is := s.strategy.(rate.Sweeper); is { // it cannot wait for a bucket that may be swept
		for from, done := rate.Cursor(0), false; !done; {
			swept, err := able.Sweep(s.Context(), s.session, from, 100)
			if err != nil || !swept.Done && swept.Next <= from {
				s.Fatalf("a sweep from %d: %+v, %v", from, swept, err)
			}
			from, done = swept.Next, swept.Done
		}
	}
	w.rounds(1)
}

func everyQueryMode(s *suite) {
	if _, is := s.driver.(pgxDriver); !is {
		s.Skip("the modes are pgx's")
	}
	for i, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		config := s.pool.Config().ConnConfig
		config.DefaultQueryExecMode = mode
		config.RuntimeParams["datestyle"] = "German, DMY" // no mode depends on how times are written
		conn, err := pgx.ConnectConfig(s.Context(), config)
		if err != nil {
			s.Fatal(err)
		}
		w := s.walk(postgres.OnConn(conn), 10+uint64(i))
		// Its first call, which has no plan yet that any number will do for.
		most := rate.Request{Limiter: s.limiter, Key: mode.String(), Limit: w.buckets[0].limits[0], Tokens: 1 << 60, Unit: 1}
		s.takeAll(w.session, most)
		w.rounds(5)
		_ = conn.Close(context.WithoutCancel(s.Context()))
	}
}

// A denial and a peek write nothing and lock no row: the transaction that they are in, their own or the caller's,
// has no id after them, which costs WAL. One durable request makes the whole call durable: whatever transaction
// writes, commits as the connection does without us.
func writesAsItShould(s *suite) {
	session := s.watch()
	session.exec(s, "set synchronous_commit = local") // which is not what a strategy would set
	w := s.walk(session, 2)
	w.rounds(5)
	w.begins = true
	w.rounds(5)
}

// A call joins the caller's transaction, also one that was begun on a connection by a plain statement: what it does
// is gone after a rollback, and there after a commit. The transaction goes on, keeps its settings, and has no
// savepoint of ours.
func joinsTransaction(s *suite) {
	conn, release, err := s.driver.Conn(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	defer release()
	exec := func(sql string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := conn.Exec(ctx, sql)
			return err
		}
	}
	plain := func() Tx {
		if err := exec("begin")(s.Context()); err != nil {
			s.Fatal(err)
		}
		return Tx{conn, exec("commit"), exec("rollback")}
	}
	w := s.walk(conn, 3)
	before := s.settings(conn)
	for i, begin := range []func() Tx{s.begin, s.begin, plain, plain} {
		w.rounds(1)
		tx, past := begin(), w.copy()
		w.session = tx
		w.rounds(3)
		if after := s.settings(tx); after != before || tx.Autocommits() {
			s.Errorf("settings were %s, are %s (autocommits: %v)", before, after, tx.Autocommits())
		}
		end := tx.Commit
		if i%2 == 0 {
			if _, err := tx.Exec(s.Context(), "rollback to savepoint pglimit"); err == nil {
				s.Error("a savepoint was left behind")
			}
			end = tx.Rollback
			w.remember(past)
		}
		if err := end(s.Context()); err != nil {
			s.Fatal(err)
		}
		w.session = conn
	}
	w.rounds(1)
}

func (s *suite) settings(session rate.Session) (all string) {
	s.Helper()
	err := session.Row(s.Context(), `select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
		where name in ('synchronous_commit', 'search_path', 'lock_timeout', 'statement_timeout', 'transaction_isolation')`, nil, &all)
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// hasRow checks Decision.HasRow: of a key that was never asked for, after a grant, and when the bucket is full again.
func hasRow(s *suite) {
	limit := rate.Every(5 * ms)
	wants := func(d rate.Decision, has bool) {
		s.Helper()
		if d.HasRow != has {
			s.Errorf("want HasRow %v: %+v", has, d)
		}
	}
	wants(s.peek("k", limit), false)
	for _, d := range s.takeAll(s.session, s.ask("k", limit, 0, 1), s.ask("another", limit, 0, 1)) {
		wants(d, false)
	}
	wants(s.take("k", limit, 1, 1), true)
	_, full := s.until("a full bucket", func() rate.Decision { return s.peek("k", limit) }, func(d rate.Decision) bool { return d.ResetAfter == 0 })
	wants(full, true)
	several := s.takeAll(s.session, s.ask("k", limit, 0, 1), s.ask("another", limit, 0, 1))
	wants(several[0], true)
	wants(several[1], false)
}
