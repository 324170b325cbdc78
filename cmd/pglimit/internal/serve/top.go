package serve

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

const (
	topPath = "/v1/top"

	// topTimeout is how long the view may take: it reads an hour of all processes.
	topTimeout = 5 * time.Second
)

// top answers which keys are denied or granted most: GET /v1/top?limiter=api&by=denied&minutes=10&limit=20.
func (s *Server) top(w http.ResponseWriter, r *http.Request) {
	p := s.may(r, Read, r.URL.Query().Get("limiter")) // topQuery refuses a second one
	if p == nil && r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		p = newProblem(http.StatusMethodNotAllowed, "the method is %s: %s takes GET and HEAD", r.Method, topPath)
	}
	var query pglimit.TopQuery
	if p == nil {
		query, p = topQuery(r)
	}
	if p == nil {
		ctx, cancel := context.WithTimeout(r.Context(), topTimeout)
		defer cancel()
		keys, err := s.config.Top.Keys(ctx, query)
		if err == nil {
			writeJSON(w, http.StatusOK, "application/json", map[string]any{"keys": keys})
			return
		}
		p = problemOf(err)
	}
	p.write(w)
}

func topQuery(r *http.Request) (query pglimit.TopQuery, p *problem) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return query, newProblem(http.StatusBadRequest, "the query is not well formed: %v", err)
	}
	for name, value := range values {
		switch name {
		case "limiter":
			query.Limiter = value[0]
		case "by":
			query.Granted = value[0] == "granted"
			if !slices.Contains([]string{"denied", "granted"}, value[0]) {
				p = invalid(name, "must be denied or granted")
			}
		case "minutes", "limit":
			n, err := strconv.Atoi(value[0])
			if err != nil || n < 1 {
				p = invalid(name, "must be a whole number from 1")
			}
			if name == "limit" {
				query.Limit = n
			} else {
				query.Minutes = n
			}
		default:
			p = newProblem(http.StatusBadRequest, "the query has %q: %s takes limiter, by, minutes and limit", name, topPath)
		}
		if len(value) > 1 {
			p = newProblem(http.StatusBadRequest, "the query has %s twice: it must be there once", name)
		}
	}
	return query, p
}
