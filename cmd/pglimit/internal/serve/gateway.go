package serve

import (
	"net/http"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
)

// Gateway names the header fields in which a gateway sends the limiter and the key. The gateway must overwrite what its
// clients send there.
type Gateway struct {
	Limiter string // its name
	Key     string
}

const gatewayPath = "/v1/gateway"

// gateway answers a gateway that asks whether a request may pass: 200, or the status that it knows as a denial. Its
// clients may see the answer. So faults between the gateway and this server are 500, also a wrong token, and only the log
// explains them.
func (s *Server) gateway(w http.ResponseWriter, r *http.Request) {
	p := s.askedByGateway(w, r)
	switch {
	case p == nil:
		return
	case p.Field == "key":
		p = newProblem(http.StatusBadRequest, "%s", p.Detail)
	case p.Status == http.StatusServiceUnavailable:
		p = newProblem(p.Status, "it is not known at present whether the request is within its limits")
	default:
		if now := time.Now().Unix(); p.Cause == "" && s.complained.Swap(now) != now { // a Limiter logs its failures
			s.logger.Error("pglimit serve: "+gatewayPath+" cannot decide", "error", p.Detail)
		}
		p = newProblem(http.StatusInternalServerError, "the limits of requests are not set up properly")
	}
	p.write(w)
}

func (s *Server) askedByGateway(w http.ResponseWriter, r *http.Request) *problem {
	t, denied, p := s.admit(w, r, Decide, []string{http.MethodGet, http.MethodHead}, http.StatusTooManyRequests,
		http.StatusForbidden)
	if p != nil {
		return p
	}
	var a ask
	if a.Limiter, p = onlyValue(r, "limiter", s.config.Gateway.Limiter); p != nil {
		return p
	}
	if a.Key, p = onlyValue(r, "key", s.config.Gateway.Key); p != nil {
		return p
	}
	l, request, _, p := s.request(r.Context(), t, &a, false)
	if p != nil {
		return p
	}
	d, err := l.Do(r.Context(), request)
	if p := l.problem(&request, &d, err); p != nil {
		return p
	}
	httplimit.SetFields(w.Header(), d)
	if !d.Allowed {
		setRetryAfter(w, d.RetryAfter)
		newProblem(denied, "too many requests: try again in %d s", seconds(d.RetryAfter)).write(w)
		return nil
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	return nil
}

// onlyValue returns the value of the header field. If there are two, one is a client's.
func onlyValue(r *http.Request, what, field string) (string, *problem) {
	values := r.Header.Values(field)
	if len(values) != 1 || values[0] == "" {
		return "", invalid(what, "must be in the header field "+field+", once")
	}
	return values[0], nil
}
