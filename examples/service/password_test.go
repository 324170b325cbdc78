package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// No error has a part of a password in it.
func TestMistakesKeepThePassword(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--database-url", "postgres://u:hidden/more@h:5432/x"},
		{"--database-url", "postgres://u:hidden%zz@h/x"},
		{"--database-url", "host=h port=hidden"},
		{"postgres://u:hidden@h/x"},
		{"host=h password=hidden"},
	} {
		says, err := program(t, "", append([]string{"--listen", "127.0.0.1:0"}, args...)...).CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Contains(string(says), "hidden") {
			t.Errorf("%q: %v, it says %s", args, err, says)
		}
	}
}
