package integration

import (
	"io"
	"os"
	"os/exec"
	"testing"
)

// task of a child; empty in the process that runs the tests.
func task() string { return os.Getenv("PGLIMIT_TEST_CHILD") }

// child starts this program again, in a process of its own that ends with the test, to run the named
// function, which does its task. It returns the process and what that prints.
func child(t *testing.T, function, task string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+function+"$")
	cmd.Env = append(os.Environ(), "PGLIMIT_TEST_CHILD="+task)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	_, err = cmd.StdinPipe() // closed when this process ends
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out
}
