package httplimit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
)

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int // 0: none yet
}

// withOptions returns the recorder with the optional interfaces of its ResponseWriter, or of a wrapped one, for
// handlers that ask for them. http.ResponseController finds the others with Unwrap.
func (r *recorder) withOptions() http.ResponseWriter {
	_, flushes := find[http.Flusher](r.ResponseWriter)
	_, hijacks := find[http.Hijacker](r.ResponseWriter)
	pusher, pushes := find[http.Pusher](r.ResponseWriter)
	switch {
	case flushes && hijacks: // HTTP/1
		return struct {
			*recorder
			flusher
			hijacker
		}{r, flusher{r}, hijacker{r}}
	case flushes && pushes: // HTTP/2
		return struct {
			*recorder
			flusher
			http.Pusher
		}{r, flusher{r}, pusher}
	case flushes:
		return struct {
			*recorder
			flusher
		}{r, flusher{r}}
	case hijacks:
		return struct {
			*recorder
			hijacker
		}{r, hijacker{r}}
	}
	return r
}

// find looks for the interface as http.ResponseController does: through all wrappers. A handler would otherwise find it
// behind the recorder, which would not notice its use.
func find[T any](w http.ResponseWriter) (found T, is bool) {
	for {
		if found, is = w.(T); is {
			return found, true
		}
		wrapper, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !wraps {
			return found, false
		}
		w = wrapper.Unwrap()
	}
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

func (r *recorder) WriteString(s string) (int, error) {
	r.sends(http.StatusOK)
	return io.WriteString(r.ResponseWriter, s)
}

// ReadFrom sends files without copying them through this process, if w can. The beginning goes through Write: an empty
// or failing reader sends nothing, and another status may follow.
func (r *recorder) ReadFrom(from io.Reader) (int64, error) {
	var begun int64
	if r.status == 0 {
		const beginning = 512 // which is what a type is detected by
		var err error
		begun, err = io.Copy(struct{ io.Writer }{r}, io.LimitReader(from, beginning))
		if err != nil || begun < beginning {
			return begun, err
		}
	}
	n, err := io.Copy(r.ResponseWriter, from)
	return begun + n, err
}

// FlushError is what http.ResponseController looks for first. If w cannot flush, nothing is sent. Any other error comes
// after the status.
func (r *recorder) FlushError() error {
	err := http.NewResponseController(r.ResponseWriter).Flush()
	if !errors.Is(err, errors.ErrUnsupported) {
		r.sends(http.StatusOK)
	}
	return err
}

type flusher struct{ to *recorder }

func (f flusher) Flush() { _ = f.to.FlushError() } // there is nowhere to tell

type hijacker struct{ to *recorder }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(h.to.ResponseWriter).Hijack()
	if err == nil {
		h.to.sends(http.StatusSwitchingProtocols)
	}
	return conn, buffer, err
}
