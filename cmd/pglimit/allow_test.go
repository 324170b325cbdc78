package main

import (
	"net"
	"strings"
	"testing"
)

// The user gave two times, and the error must not name a --timeout that nobody gave.
func TestTooLateNamesTheFlagsAsGiven(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // it accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // nothing was sent
	url := "postgres://" + silent.Addr().String() + "/x?sslmode=disable&connect_timeout=60"
	for want, args := range map[string][]string{
		"within --timeout 10ms\n":                          {},
		"within --timeout 10ms and --wait 30ms together\n": {"--wait", "30ms"},
	} {
		args = append([]string{"allow", "k", "--limit", "1/s", "--timeout", "10ms", "--database-url", url}, args...)
		if code, _, stderr := call(t.Context(), args...); code != 2 || !strings.HasSuffix(stderr, want) {
			t.Errorf("%q: exit code %d, %s", args, code, stderr)
		}
	}
}
