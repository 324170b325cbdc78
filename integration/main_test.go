package integration

import (
	"fmt"
	"os"
	"testing"
)

// TestMain removes the server that the tests used, once all have ended. It starts
// none: that is left to the first test that wants a database.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := stopServer(); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
