package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// pipe is a connection to a peer in this process that answers each byte with "abc".
func pipe(t testing.TB) net.Conn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	raw, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	peer, err := listener.Accept()
	must(t, err)
	must(t, listener.Close()) // only now: a connection that waits to be accepted would be reset
	go func() {
		defer func() { _ = peer.Close() }()
		for question := make([]byte, 1); ; {
			if _, err := io.ReadFull(peer, question); err != nil {
				return
			}
			if _, err := peer.Write([]byte("abc")); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = raw.Close() })
	return raw
}

// pauses are both kinds of them, whichever this system takes.
var pauses = map[string]func() pause{
	"of this system": newPause,
	"of Go's timers": func() pause { return newTimerPause() },
}

// A deadline ends the wait, whenever it is set; the answer that was held back comes later.
func TestADeadlineLosesNoAnswer(t *testing.T) {
	t.Parallel()
	for name, newPause := range pauses {
		for when, early := range map[string]bool{"set before": true, "set meanwhile": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				var m Meter
				const latency, short = time.Hour, 50 * time.Millisecond
				c := &far{conn: m.add(pipe(t)), latency: latency, pause: newPause()}
				defer func() { must(t, c.Close()) }()
				began := time.Now()
				_, err := c.Write([]byte("?"))
				must(t, err)
				if early {
					must(t, c.SetDeadline(began.Add(short)))
				} else {
					time.AfterFunc(short, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
				}
				buf := make([]byte, 2)
				n, err := c.Read(buf)
				var timeout net.Error
				if took := time.Since(began); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) ||
					!timeout.Timeout() || took < short || took >= latency {
					t.Errorf("after %v: %d bytes and %v, want a timeout after %v", took, n, err, short)
				}
				if n, err := c.Read(buf); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("again: %d bytes and %v", n, err)
				}
				must(t, c.SetDeadline(time.Time{}))
				due := time.Now().Add(short) // and not in an hour
				c.due = due
				if got := m.Count().SetUp; got != 0 {
					t.Errorf("%d round trips before the answer was returned", got)
				}
				var got string
				for len(got) < 3 {
					n, err := c.Read(buf)
					must(t, err)
					got += string(buf[:n])
				}
				if early := time.Until(due); got != "abc" || early > 0 || time.Since(began) >= latency || m.Count().SetUp != 1 {
					t.Errorf("then %q, %v too early, in %d round trips", got, early, m.Count().SetUp)
				}
			})
		}
	}
}
