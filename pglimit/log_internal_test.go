package pglimit

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
)

// A caller may be refused in the moment between the opening of the breaker and its saying why:
// then that is logged when it says so.
func TestARefusalBeforeTheBreakerSaysWhy(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := &failureLog{logger: slog.New(slog.NewTextHandler(&log, nil)), limiter: "api"}
	c.failed(t.Context(), "k", CauseBreaker, circuit.ErrOpen)
	c.circuit(true, errors.New("connection refused"))
	if lines := log.String(); strings.Count(lines, "does not answer; until") != 1 || !strings.Contains(lines, `error="connection refused"`) {
		t.Error(lines)
	}
}
