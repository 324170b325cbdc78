//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// newLocal is a server yet to be started.
func newLocal(t *testing.T) *local {
	t.Helper()
	needsLocal(t)
	folders := findBinaries()
	return &local{bin: folders[0]}
}

// newPrepared is a server yet to be started, for tests of what comes after initdb, which takes longer than all the
// rest: its initdb copies a cluster that is made once, and lets anybody in.
func newPrepared(t *testing.T) *local {
	t.Helper()
	needsLocal(t)
	bin, err := prepared()
	if err != nil {
		t.Fatal(err)
	}
	return &local{bin: bin}
}

// preparedDir is what prepared has made.
var preparedDir string

// prepared makes a folder of binaries.
var prepared = sync.OnceValues(func() (bin string, err error) {
	installed := findBinaries()[0]
	account, err := unprivileged()
	if err != nil {
		return "", err
	}
	if preparedDir, err = account.tempDir(); err != nil {
		return "", err
	}
	do := func(sql, program string, args ...string) error {
		cmd := exec.Command(filepath.Join(installed, program), args...)
		cmd.Dir, cmd.Stdin = preparedDir, strings.NewReader(sql)
		joinGroup(cmd, 0)
		account.runs(cmd)
		_, err := run(cmd)
		return err
	}
	if err := do("", "initdb", "-D", "data", "-U", superuser, "-A", "trust", "--wal-segsize", "1", "--no-sync"); err != nil {
		return "", err
	}
	if err := do("update pg_database set datistemplate = false;\ndrop database template0;\ndrop database template1;\n", // half of it
		"postgres", "--single", "-D", "data", superuser); err != nil {
		return "", err
	}
	copies := filepath.Join(preparedDir, "initdb")
	return preparedDir, errors.Join(
		os.Symlink(filepath.Join(installed, "postgres"), filepath.Join(preparedDir, "postgres")),
		os.WriteFile(copies, []byte("#!/bin/sh\nexec cp -R "+preparedDir+"/data \"$2\"\n"), 0o700),
		account.own(copies),
	)
})

// nothingLeft fails the test if a process or a file of the server remains.
func nothingLeft(t *testing.T, l *local) {
	t.Helper()
	if _, err := os.Stat(l.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", l.dir, err)
	}
	// What initdb had started is ended with it, but stays in the group until init has seen to it.
	var err error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		if err = syscall.Kill(-l.guard.group(), 0); errors.Is(err, syscall.ESRCH) {
			break
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // between two looks: the kernel tells nobody but a parent
	}
	if !errors.Is(err, syscall.ESRCH) {
		t.Errorf("there are processes in the group of the server (%v)", err)
	}
	if left := processesIn(l.dir); left != nil {
		t.Errorf("processes in its folder: %v", left)
	}
}

// processesIn finds processes by their folder, which Postgres's are in; on Linux.
func processesIn(dir string) (pids []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir) {
			pids = append(pids, strings.Split(link, "/")[2])
		}
	}
	return pids
}

func TestLocalServer(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	serves(t, started(t, Options{From: []Source{Local}}), "from "+l.bin)
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	for when, l := range map[string]*local{
		"running bootstrap script": newLocal(t), // which is a child of initdb
		"starting PostgreSQL":      newPrepared(t),
	} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l.log = &listener{words: when, then: cancel}
			if _, err := l.start(ctx); err == nil {
				t.Error("it started though it was given up")
				_ = l.stop()
			}
			nothingLeft(t, l)
		})
	}
}

func TestFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newPrepared(t)
	l.settings = map[string]string{"max_connections": "many"}
	_, err := l.start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "max_connections") {
		t.Errorf("the error does not tell: %v", err)
	}
	nothingLeft(t, l)
}

func TestSurroundingsHaveNoSay(t *testing.T) {
	// Not parallel: the environment is changed.
	for _, name := range []string{"PGDATA", "PGPORT", "LC_MESSAGES", "LC_ALL", "LANG", "LANGUAGE"} {
		t.Setenv(name, "xx_YY.UTF-8")
	}
	for _, variable := range new(throwaway).command(t.Context(), "postgres").Env {
		if strings.Contains(variable, "xx_YY") {
			t.Errorf("the server gets %s", variable)
		}
	}
}

// TestMain is, in the process that TestServerGoesWithAKilledProcess starts, the program that has a
// server and is killed.
func TestMain(m *testing.M) {
	if os.Getenv("PGSERVER_TEST_CHILD") == "" {
		code := m.Run()
		if preparedDir != "" {
			_ = os.RemoveAll(preparedDir)
		}
		os.Exit(code)
	}
	l := &local{bin: os.Getenv("PGSERVER_TEST_CHILD")}
	s, err := l.start(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.URL(""), l.dir, l.process.cmd.Process.Pid)
	select {}
}

func TestServerGoesWithAKilledProcess(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0]) // in a process group of its own
	child.Env = append(os.Environ(), "PGSERVER_TEST_CHILD="+newPrepared(t).bin)
	child.Stderr = os.Stderr
	joinGroup(child, 0)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	var url, dir string
	var server int
	if _, err := fmt.Fscanln(out, &url, &dir, &server); err != nil {
		t.Fatalf("the child did not start a server: %v", err)
	}
	connect(t, url)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for isThere(dir) || syscall.Kill(server, 0) == nil {
		if time.Now().After(deadline) {
			t.Fatalf("process %d or %s is still there", server, dir)
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // between two looks: the kernel tells nobody but a parent
	}
	if _, err := pgx.Connect(t.Context(), url); err == nil {
		t.Error("it still answers")
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestFolderIsOnlyForTheServersUser(t *testing.T) {
	t.Parallel()
	a, err := unprivileged()
	if err != nil {
		t.Skip(err)
	}
	dir, err := a.tempDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, a.memoryDir()} {
		if dir == "" {
			continue // there is no room in memory
		}
		defer func() { _ = os.Remove(dir) }()
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s: its mode is %v, want 0700", dir, info.Mode())
		}
		if a != nil && info.Sys().(*syscall.Stat_t).Uid != a.uid {
			t.Errorf("%s does not belong to %s", dir, a.name)
		}
	}
}

func TestIsOpenToAll(t *testing.T) {
	t.Parallel()
	closed := t.TempDir()
	inside := filepath.Join(closed, "inside")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if isOpenToAll(inside) {
		t.Error("a folder in a closed one is open")
	}
	if !isOpenToAll("/") {
		t.Error("the root folder is closed")
	}
}
