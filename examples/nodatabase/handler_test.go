package nodatabase

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func TestHandler(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter, err := pglimittest.New(memory, pglimit.Config{Name: "codes", Limit: pglimit.PerHour(2)})
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	handler := NewHandler(limiter, func(string) { sent++ })
	for _, step := range []struct {
		what         string
		before       func()
		number       string
		status, sent int
	}{
		{"the first", func() {}, "1", http.StatusOK, 1},
		{"the second", func() {}, "1", http.StatusOK, 2},
		{"one too many", func() {}, "1", http.StatusTooManyRequests, 2},
		{"another number", func() {}, "2", http.StatusOK, 3},
		{"half an hour later", func() { memory.Advance(30 * time.Minute) }, "1", http.StatusOK, 4},
		{"Postgres is down", func() { memory.Fail(pglimit.ErrUnavailable) }, "2", http.StatusServiceUnavailable, 4},
		{"it is up again", func() { memory.Fail(nil) }, "2", http.StatusOK, 5},
	} {
		step.before()
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/?number="+step.number, http.NoBody))
		if answer.Code != step.status || sent != step.sent {
			t.Errorf("%s: %d, and %d sent; want %d, and %d", step.what, answer.Code, sent, step.status, step.sent)
		}
	}
}
