//go:build !unix

package pgserver

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// There is no guard here: a container outlives this process if that is killed.
const hasGuard = false

const (
	quit      = syscall.SIGKILL
	interrupt = syscall.SIGKILL
	terminate = syscall.SIGKILL
)

type account struct{}

func joinGroup(*exec.Cmd, int) {}

func signalGroup(int, syscall.Signal) error { return os.ErrProcessDone }

func unprivileged() (*account, error) {
	return nil, errors.New("they are run on Unix only: use Docker")
}

func (*account) runs(*exec.Cmd) {}

func (*account) own(string) error { return nil }

func (*account) tempDir() (string, error) { return os.MkdirTemp("", "pglimit-postgres-") }

func (*account) memoryDir() string { return "" }

func (*account) cacheDir() (string, error) { return os.UserCacheDir() }

func openToAll(string) error { return nil }

func lockFile(string) (unlock func(), err error) { return func() {}, nil }
