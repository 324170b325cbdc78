//go:build !linux

package main

import (
	"os"
	"os/exec"
)

// prepare the command, which send signals.
func prepare(command *exec.Cmd, _ bool) (send func(os.Signal)) {
	return func(s os.Signal) { _ = command.Process.Signal(s) }
}
