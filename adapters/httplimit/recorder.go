package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int // 0: none yet
}

// as returns the recorder with those optional interfaces that w has, for handlers that ask for
// them. http.ResponseController finds the others by Unwrap.
func (r *recorder) as(w http.ResponseWriter) http.ResponseWriter {
	_, flushes := w.(http.Flusher)
	_, hijacks := w.(http.Hijacker)
	pusher, pushes := w.(http.Pusher)
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

// ReadFrom lets files be sent without copying them through this process, if w can.
func (r *recorder) ReadFrom(from io.Reader) (int64, error) {
	r.sends(http.StatusOK)
	return io.Copy(r.ResponseWriter, from)
}

// FlushError is what http.ResponseController looks for first.
func (r *recorder) FlushError() error {
	r.sends(http.StatusOK)
	return http.NewResponseController(r.ResponseWriter).Flush()
}

type flusher struct{ to *recorder }

func (f flusher) Flush() { _ = f.to.FlushError() } // there is nowhere to tell

type hijacker struct{ to *recorder }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := h.to.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil {
		h.to.sends(http.StatusSwitchingProtocols)
	}
	return conn, buffer, err
}
