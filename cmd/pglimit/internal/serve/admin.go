package serve

import (
	"net/http"

	"github.com/pglimit/ratelimit/adapters/adminlimit"
)

// adminPath is where the page for operators is, with --admin.
const adminPath = "/admin/"

// admin is the page. A browser asks for a name, which the history of limits has, and a password, which is a token.
func (s *Server) admin() http.Handler {
	page := http.StripPrefix(adminPath[:len(adminPath)-1], adminlimit.New(s.config.Admin, adminlimit.Config{
		Top: s.config.Top, Logger: s.logger,
		May: func(r *http.Request, limiter string, change bool) bool {
			if change {
				return s.may(r, Administer, limiter) == nil
			}
			return s.may(r, Read|Administer, limiter) == nil
		},
		Who: func(r *http.Request) string {
			name, _, _ := r.BasicAuth()
			return name
		},
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, p := s.token(r)
		if p == nil {
			if p = t.may(Read | Administer); p != nil {
				p = newProblem(http.StatusUnauthorized, "%s", p.Detail) // so that the browser asks for another one
			}
		}
		if p != nil {
			p.write(w)
			return
		}
		page.ServeHTTP(w, r)
	})
}
