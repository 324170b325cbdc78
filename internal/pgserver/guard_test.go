package pgserver

import (
	"io"
	"testing"
)

// slowToClose is a pipe that is closed only when the guard has gone.
type slowToClose struct {
	io.WriteCloser
	exited <-chan struct{}
}

func (p slowToClose) Close() error {
	<-p.exited
	return p.WriteCloser.Close()
}

func TestAGuardThatEndsFastIsNoFailure(t *testing.T) {
	t.Parallel()
	g, err := newGuard("exit", "")
	if err != nil {
		t.Fatal(err)
	}
	if g == nil {
		t.Skip("there is no guard here")
	}
	g.pipe = slowToClose{g.pipe, g.process.exited}
	if err := g.dismiss(); err != nil {
		t.Error(err)
	}
}
