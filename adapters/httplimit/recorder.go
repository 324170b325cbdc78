package httplimit

import (
	"bufio"
	"errors"
	"net"
	"net/http"
)

// recorder notes the status of an answer. It can flush and hijack whatever its ResponseWriter can, or returns
// http.ErrNotSupported. http.ResponseController finds the other optional methods with Unwrap.
type recorder struct {
	http.ResponseWriter
	status int // 0: none yet
}

// final is the status once the handler has returned.
func (r *recorder) final() int {
	r.sends(http.StatusOK)
	return r.status
}

// sends notes the first status, which is the one that counts. Those below 200 precede another.
func (r *recorder) sends(status int) {
	if r.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		r.status = status
	}
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.sends(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sends(http.StatusOK)
	return r.ResponseWriter.Write(b)
}

func (r *recorder) Flush() { _ = r.FlushError() } // there is nowhere to tell

// FlushError is what http.ResponseController looks for first. If w cannot flush, nothing is sent. Any other error comes
// after the status.
func (r *recorder) FlushError() error {
	err := http.NewResponseController(r.ResponseWriter).Flush()
	if !errors.Is(err, errors.ErrUnsupported) {
		r.sends(http.StatusOK)
	}
	return err
}

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.sends(http.StatusSwitchingProtocols)
	}
	return conn, buffer, err
}
