package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// A connection string that is no flag's is not shown.
func TestAStrayConnectionStringIsNotShown(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"postgres://u:hidden@h/x"},
		{"host=h password=hidden"},
	} {
		says, err := program(t, "", append([]string{"--listen", "127.0.0.1:0"}, args...)...).CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Contains(string(says), "hidden") {
			t.Errorf("%q: %v, it says %s", args, err, says)
		}
	}
}
