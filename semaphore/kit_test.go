package semaphore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// server answers the calls of a Semaphore. Tests run in a bubble of synctest, whose time passes at once.
type server struct {
	acquire        func() (acquired bool, free time.Duration, err error)
	renew, release func() (held bool, err error)
	commit         func() error

	mu      sync.Mutex
	calls   []string  // verbs
	holders []string  // of these calls
	ends    time.Time // at the latest, the last renewal
	lasts   int64     // microseconds, by the last acquire or renewal
}

func (s *server) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s *server) Driver() driver.Driver                        { return nil }
func (s *server) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not here") }
func (s *server) Begin() (driver.Tx, error)                    { return nil, errors.New("not here") }
func (s *server) Close() error                                 { return nil }

func (s *server) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	_, verb, _ := strings.Cut(query, "pglimit.")
	verb, _, _ = strings.Cut(verb, "(")
	holder := args[2].Value
	if verb == "acquire" {
		holder = args[5].Value
	}
	s.mu.Lock()
	s.calls, s.holders = append(s.calls, verb), append(s.holders, holder.(string))
	switch verb {
	case "acquire":
		s.lasts = args[4].Value.(int64)
	case "renew":
		s.lasts = args[3].Value.(int64)
		s.ends, _ = ctx.Deadline()
	}
	acquire, renew, release := s.acquire, s.renew, s.release
	s.mu.Unlock()
	switch verb {
	case "acquire":
		acquired, free, err := acquire()
		return &row{values: []driver.Value{acquired, int64(7), free.Microseconds()}}, err
	case "renew":
		held, err := renew()
		return &row{values: []driver.Value{held}}, err
	}
	held, err := release()
	return &row{values: []driver.Value{held}}, err
}

func (s *server) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if query == "commit" || query == "rollback" {
		s.calls, s.holders = append(s.calls, query), append(s.holders, "")
	}
	if query == "commit" && s.commit != nil {
		return nil, s.commit()
	}
	return driver.RowsAffected(0), nil
}

// set changes an answer of the server.
func set[F any](s *server, answer *F, to F) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*answer = to
}

// get is what the server was last told.
func get[F any](s *server, told *F) F {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *told
}

// count is how many calls there were of the verb.
func (s *server) count(verb string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.calls {
		if call == verb {
			n++
		}
	}
	return n
}

// row is a result of one row.
type row struct {
	values []driver.Value
	read   bool
}

func (r *row) Columns() []string { return make([]string, len(r.values)) }
func (r *row) Close() error      { return nil }

func (r *row) Next(into []driver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read = true
	copy(into, r.values)
	return nil
}

var errBroken = errors.New("broken")

func yes() (bool, error)                    { return true, nil }
func no() (bool, error)                     { return false, nil }
func broken() (bool, error)                 { return false, errBroken }
func granted() (bool, time.Duration, error) { return true, 0, nil }
func after(d time.Duration) func() (bool, error) {
	return func() (bool, error) { time.Sleep(d); return true, nil }
}

// inBubble runs the test with a Semaphore of one place and a TTL of 30 s, on that server.
func inBubble(t *testing.T, on *server, config Config, test func(t *testing.T, s *Semaphore)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(on)
		config.Name, config.Places, config.Timeout = "test", 1, cmp.Or(config.Timeout, 30*time.Second)
		s, err := New(db, config)
		if err != nil {
			t.Fatal(err)
		}
		test(t, s)
		if err := errors.Join(s.Close(t.Context()), db.Close()); err != nil {
			t.Error(err)
		}
	})
}

// lostAfter waits until the permit is lost, which must be so long after began.
func lostAfter(t *testing.T, p *Permit, began time.Time, want time.Duration) {
	t.Helper()
	<-p.Context().Done()
	if took := time.Since(began); took != want || !errors.Is(p.Err(), ErrLost) || !errors.Is(context.Cause(p.Context()), ErrLost) {
		t.Errorf("after %v, want %v: %v, %v", took, want, p.Err(), context.Cause(p.Context()))
	}
	for range 2 {
		if err := p.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("released late: %v", err)
		}
	}
	if got := p.semaphore.Stats(); got.Lost != 1 || got.Held != 0 {
		t.Errorf("%+v", got)
	}
}

func acquired(t *testing.T, s *Semaphore) *Permit {
	t.Helper()
	p, err := s.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// acquiredIf acquires a permit with a condition that holds.
func acquiredIf(t *testing.T, s *Semaphore) *Permit {
	t.Helper()
	p, err := s.TryAcquireIf(t.Context(), "k", 1, func(context.Context, rate.Session) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return p
}
