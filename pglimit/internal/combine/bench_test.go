package combine_test

import (
	"context"
	"io"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// echo is a server that answers after a round trip through another process.
type echo struct {
	to    io.WriteCloser
	from  io.ReadCloser
	calls atomic.Int64
}

func newEcho(b *testing.B) *echo {
	cat := exec.CommandContext(b.Context(), "cat")
	to, err := cat.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	from, err := cat.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { _ = to.Close(); _ = cat.Wait() })
	return &echo{to: to, from: from}
}

func (e *echo) send(_ context.Context, requests []rate.Request) ([]rate.Decision, error) {
	e.calls.Add(1)
	var one [1]byte
	if _, err := e.to.Write(one[:]); err != nil {
		return nil, err
	}
	if _, err := e.from.Read(one[:]); err != nil {
		return nil, err
	}
	return grant(requests), nil
}

// BenchmarkOneCaller compares a caller who makes the call himself with one whose call the Combiner
// makes.
func BenchmarkOneCaller(b *testing.B) {
	r := request("k", 1)
	b.Run("without", func(b *testing.B) {
		e := newEcho(b)
		for b.Loop() {
			if _, err := e.send(b.Context(), []rate.Request{r}); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, ctx := range map[string]context.Context{"cancellable": b.Context(), "not": context.Background()} {
		b.Run(name, func(b *testing.B) {
			e := newEcho(b)
			c := combine.New(2, combine.Functions{Send: e.send, Learned: func() uint64 { return 0 }})
			for b.Loop() {
				if _, err := decide(ctx, c, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
