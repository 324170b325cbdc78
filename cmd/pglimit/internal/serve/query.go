package serve

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// statusOfDenial returns the status that the query asks for with denied: one of those, the first by default. Other
// parameters are refused: a misspelt "denied=429" would let denied callers pass. Without statuses, all are.
func statusOfDenial(r *http.Request, statuses ...int) (int, *problem) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return 0, newProblem(http.StatusBadRequest, "the query is not well formed: %v", err)
	}
	for name, values := range query {
		switch {
		case len(statuses) == 0:
			return 0, newProblem(http.StatusBadRequest, "the query has %q: %s takes no parameters there", name, r.URL.Path)
		case name != "denied" || len(values) > 1:
			return 0, newProblem(http.StatusBadRequest, "the query has %q: %s takes only denied there, once, as in "+
				"%[2]s?denied=429", name, r.URL.Path)
		}
	}
	if len(statuses) == 0 || !query.Has("denied") {
		return append(statuses, 0)[0], nil
	}
	status, err := strconv.Atoi(query.Get("denied"))
	if err != nil || !slices.Contains(statuses, status) {
		return 0, newProblem(http.StatusBadRequest, "the query's denied is %q: it must be one of %v",
			query.Get("denied"), statuses)
	}
	return status, nil
}
