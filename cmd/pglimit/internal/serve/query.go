package serve

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// checkQuery refuses parameters that the path does not know: a misspelt "denied=429" would let
// denied callers pass.
func checkQuery(r *http.Request) *problem {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem(http.StatusBadRequest, "the query is not well formed: %v", err)
	}
	known := ""
	if r.URL.Path == "/v1/allow" || r.URL.Path == gatewayPath {
		known = "denied"
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case name != known && known == "":
			return newProblem(http.StatusBadRequest, "the query has %q: %s takes no parameters there", name, r.URL.Path)
		case name != known:
			return newProblem(http.StatusBadRequest, "the query has %q: %s takes only %s there, as in %s?denied=429",
				name, r.URL.Path, known, r.URL.Path)
		case len(query[name]) > 1:
			return newProblem(http.StatusBadRequest, "the query has %s twice: it must be there once", name)
		}
	}
	return nil
}

// statusOfDenial returns the status that the query asks for: one of two, the first by default.
func statusOfDenial(r *http.Request, usual, other int) (int, *problem) {
	query := r.URL.Query()
	switch status := query.Get("denied"); {
	case !query.Has("denied"), status == strconv.Itoa(usual):
		return usual, nil
	case status == strconv.Itoa(other):
		return other, nil
	default:
		return 0, newProblem(http.StatusBadRequest, "the query's denied is %q: it must be %d or %d", status, usual,
			other)
	}
}
