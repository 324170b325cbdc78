//go:build unix

package prove

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// When a connection is cut: before the server gets a question, when it has just got it, or when it has answered.
const (
	passes int32 = iota
	cutBefore
	cutDuring
	cutAfter
)

const cutShare = 0.3 // of the questions

// proxy stands between the workers and the server.
type proxy struct {
	net.Listener
	server  string
	mode    atomic.Int32
	silence sync.RWMutex // held for writing: nothing passes
}

func newProxy(server string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{Listener: listener, server: server}
	go func() {
		for client, err := p.Accept(); err == nil; client, err = p.Accept() {
			go p.serve(client)
		}
	}()
	return p, nil
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close() //nolint:errcheck // as the server's: it may be closed already
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()  //nolint:errcheck // see above
	var loses atomic.Bool // the next answer
	go func() {
		p.copy(client, server, func() bool { return !loses.Load() })
		_ = client.Close()
	}()
	p.copy(server, client, func() bool {
		mode := p.mode.Load()
		if mode == passes || rand.Float64() > cutShare { //nolint:gosec // no secret
			return true
		}
		if mode == cutDuring {
			time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, func() { _ = client.Close() }) //nolint:gosec // no secret
		}
		loses.Store(mode == cutAfter)
		return mode != cutBefore
	})
}

// copy passes on what may pass, until something may not.
func (p *proxy) copy(to io.Writer, from io.Reader, may func() bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.silence.RLock()
		pass := n > 0 && may()
		if pass {
			_, err = to.Write(buffer[:n])
		}
		p.silence.RUnlock()
		if !pass || err != nil {
			return
		}
	}
}
