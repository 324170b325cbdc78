package wire

import (
	"bytes"
	"sync"
	"time"
)

// far is a connection to a server that seems further away. It holds back the first part of each
// answer; what follows is not delayed, as the bytes behind the first would be on their way too.
//
// The whole latency lies between the server's answer and the caller. For the server it is the
// same as if half of it lay before the question: a caller that locks a row in one round trip
// and commits in the next holds the lock for the latency.
type far struct {
	*conn
	latency time.Duration
	pause   pause

	mu   sync.Mutex // of the fields below, held while reading
	kept []byte     // what came, but was not returned because a deadline passed
	err  error      // comes after what is kept
	due  time.Time  // when kept may be returned
}

func (f *far) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.kept) > 0 {
		return f.readKept(p)
	}
	n, err := f.Conn.Read(p)
	if n == 0 || !f.answered() {
		return n, err
	}
	f.due = time.Now().Add(f.latency)
	if cut := f.pause.until(f.due); cut != nil {
		// The bytes are not lost: pgx may use a connection after a timeout.
		f.kept, f.err = bytes.Clone(p[:n]), err
		return 0, cut
	}
	f.trips.Add(1)
	return n, err
}

func (f *far) readKept(p []byte) (int, error) {
	if !f.due.IsZero() {
		if cut := f.pause.until(f.due); cut != nil {
			return 0, cut
		}
		f.due = time.Time{}
		f.trips.Add(1)
	}
	n := copy(p, f.kept)
	f.kept = f.kept[n:]
	if len(f.kept) > 0 {
		return n, nil
	}
	return n, f.err
}

// SetDeadline also ends a read that holds an answer back.
func (f *far) SetDeadline(t time.Time) error {
	err := f.conn.SetDeadline(t)
	f.pause.setDeadline(t)
	return err
}

// SetReadDeadline also ends a read that holds an answer back.
func (f *far) SetReadDeadline(t time.Time) error {
	err := f.conn.SetReadDeadline(t)
	f.pause.setDeadline(t)
	return err
}

// Close also ends a read that holds an answer back.
func (f *far) Close() error {
	err := f.conn.Close()
	f.pause.close()
	return err
}
