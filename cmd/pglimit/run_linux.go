package main

import (
	"os"
	"os/exec"
	"syscall"
)

// prepare the command: it is killed if this process is. If it reads from a terminal, it stays in this
// process's group, which the terminal signals. Else it has a group of its own, and send reaches the processes that it
// has started, too.
func prepare(command *exec.Cmd, terminal bool) (send func(os.Signal)) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: !terminal}
	return func(s os.Signal) {
		number, ok := s.(syscall.Signal)
		if !ok || terminal {
			_ = command.Process.Signal(s)
			return
		}
		_ = syscall.Kill(-command.Process.Pid, number)
	}
}
