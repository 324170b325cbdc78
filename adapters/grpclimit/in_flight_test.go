package grpclimit_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/semaphore"
)

// database has the functions of a semaphore of one place, and nothing else.
type database struct {
	held   atomic.Int64
	broken bool
}

func (d *database) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d *database) Driver() driver.Driver                        { return nil }
func (d *database) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not here") }
func (d *database) Begin() (driver.Tx, error)                    { return nil, errors.New("not here") }
func (d *database) Close() error                                 { return nil }

func (d *database) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	switch {
	case d.broken:
		return nil, io.ErrUnexpectedEOF
	case strings.Contains(query, "pglimit.release("):
		d.held.Add(-1)
		return &row{values: []driver.Value{true, "off"}}, nil
	case d.held.CompareAndSwap(0, 1):
		return &row{values: []driver.Value{true, int64(1), int64(0)}}, nil
	}
	return &row{values: []driver.Value{false, int64(0), int64(1000)}}, nil
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

func places(t *testing.T, d *database) *grpclimit.InFlightInterceptor {
	t.Helper()
	s, err := semaphore.New(sql.OpenDB(d), semaphore.Config{Name: "test", Places: 1})
	must(t, err)
	i, err := grpclimit.MaxInFlight(s, grpclimit.InFlight{Key: grpclimit.Constant("all")})
	must(t, err)
	return i
}

// A call has a place until its handler ends, however it ends.
func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	d := new(database)
	i := places(t, d)
	call := func(handler func()) (err error) {
		defer func() {
			if recover() != nil {
				err = io.EOF
			}
		}()
		_, err = i.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a/B"}, func(context.Context, any) (any, error) {
			handler()
			return "", nil
		})
		return err
	}
	err := call(func() {
		err := call(func() { t.Error("one too many") })
		details := status.Convert(err).Details()
		if status.Code(err) != codes.Unavailable || len(details) != 1 || details[0].(*errdetails.RetryInfo).RetryDelay.Seconds != 1 {
			t.Errorf("got %v, %v", err, details)
		}
		stream := i.Stream(nil, serverStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/a/B"}, func(any, grpc.ServerStream) error { return nil })
		if status.Code(stream) != codes.Unavailable {
			t.Errorf("a stream: %v", stream)
		}
	})
	if err != nil || d.held.Load() != 0 {
		t.Errorf("%v, %d held", err, d.held.Load())
	}
	if err := call(func() { panic("so") }); !errors.Is(err, io.EOF) || d.held.Load() != 0 {
		t.Errorf("after a panic: %v, %d held", err, d.held.Load())
	}
	err = i.Stream(nil, serverStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/a/B"}, func(_ any, stream grpc.ServerStream) error {
		if d.held.Load() != 1 || stream.Context().Err() != nil {
			t.Errorf("in a stream: %d held", d.held.Load())
		}
		return io.ErrClosedPipe
	})
	if !errors.Is(err, io.ErrClosedPipe) || d.held.Load() != 0 {
		t.Errorf("after a stream: %v, %d held", err, d.held.Load())
	}
	d.broken = true
	if err := call(func() { t.Error("a call that was not decided") }); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
}

// serverStream has a context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // as a stream has
}

func (s serverStream) Context() context.Context { return s.ctx }
