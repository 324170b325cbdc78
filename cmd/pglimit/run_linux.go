package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes this process the parent of everything that its descendants leave behind. It notices the end of each, even
// if that has left its session and closed its descriptors.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// diesWithParent makes the kernel kill the command when the thread that starts it ends, as it does when this process is
// killed.
func diesWithParent(how *syscall.SysProcAttr) { how.Pdeathsig = syscall.SIGKILL }

// signalAll signals the descendants of this process.
func signalAll(s syscall.Signal, _ int) {
	children := map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		// PID (NAME) STATE PARENT: the name may hold anything.
		stat, _ := os.ReadFile(file)
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(string(fields[1]))
		children[parent] = append(children[parent], pid)
	}
	for next := children[os.Getpid()]; len(next) > 0; next = append(next[1:], children[next[0]]...) {
		_ = syscall.Kill(next[0], s)
	}
}
