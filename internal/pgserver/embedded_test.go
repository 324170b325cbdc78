//go:build unix

package pgserver

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// jar is what Maven Central has: an archive of this machine's binaries, as links, since unpacking megabytes takes
// seconds. One is a file, whose mode is to be seen.
var jar = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin, installed := filepath.Join(dir, "bin"), findBinaries()[0]
	if err := errors.Join(
		os.Mkdir(bin, 0o755),
		os.Symlink(filepath.Join(installed, "initdb"), filepath.Join(bin, "initdb")),
		os.Symlink(filepath.Join(installed, "postgres"), filepath.Join(bin, "postgres")),
		os.WriteFile(filepath.Join(bin, "pg_ctl"), []byte("#!/bin/sh\nexit 1\n"), 0o755),
	); err != nil {
		return nil, err
	}
	txz, err := exec.Command("tar", "-C", dir, "-cJf", "-", "bin/pg_ctl", "bin/initdb", "bin/postgres").Output()
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	files := zip.NewWriter(&archive)
	file, err := files.Create("postgres.txz")
	if err == nil {
		_, err = file.Write(txz)
	}
	err = errors.Join(err, files.Close())
	return archive.Bytes(), err
})

// mirror is a repository, the only one that this process knows.
type mirror struct {
	archive  []byte // nil: it has none
	checksum [32]byte
	asked    func() // before it sends the archive
}

// onlyGo makes this machine one with Go and nothing else, and an empty cache. Not for parallel tests.
func onlyGo(t *testing.T) (m *mirror, cache string) {
	t.Helper()
	needsLocal(t)
	umask := syscall.Umask(0o022) // the cache is open to all
	t.Cleanup(func() { syscall.Umask(umask) })
	m = &mirror{asked: func() {}}
	var err error
	if m.archive, err = jar(); err != nil {
		t.Skip("no tar and xz: ", err)
	}
	m.checksum = sha256.Sum256(m.archive)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case m.archive == nil || !strings.Contains(r.URL.Path, "/17."):
			http.NotFound(w, r)
		case strings.HasSuffix(r.URL.Path, ".jar"):
			m.asked()
			_, _ = w.Write(m.archive)
		default:
			_, _ = fmt.Fprintf(w, "%x", m.checksum)
		}
	}))
	t.Cleanup(server.Close)
	home := t.TempDir()
	if err := os.Chmod(filepath.Dir(home), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		EnvRepository: server.URL, EnvSource: "", "HOME": home, "TMPDIR": home, "XDG_CACHE_HOME": filepath.Join(home, "cache"), "PATH": withoutPostgres(t),
	} {
		t.Setenv(name, value)
	}
	if cache, err = os.UserCacheDir(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	folders := binaryFolders
	t.Cleanup(func() { binaryFolders = folders })
	binaryFolders = []string{"/nowhere"}
	return m, filepath.Join(cache, "pglimit")
}

// withoutPostgres is a PATH with what the servers need, and neither Postgres nor docker.
func withoutPostgres(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sh", "rm", "sleep", "chmod"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// On a machine with Go and nothing else: as root or not, under any umask, also by two at once,
// and said before. Then no repository is needed.
func TestEmbeddedServer(t *testing.T) {
	m, cache := onlyGo(t)
	defer syscall.Umask(syscall.Umask(0o077))
	var told []string
	var mu sync.Mutex
	o := Options{Notice: func(what string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, what)
	}}
	bin := filepath.Join(cache, "postgres-"+string(embeddedVersion)+"-"+runtime.GOARCH, "bin")
	m.asked = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{"fetching PostgreSQL " + string(embeddedVersion), "(about 10 MB, once)", os.Getenv(EnvRepository), filepath.Dir(bin)} {
			if len(told) == 0 || !strings.Contains(told[0], want) {
				t.Errorf("fetching, and told: %q, want %q", told, want)
			}
		}
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if got, err := fetched(t.Context(), o); err != nil || got != bin {
				t.Errorf("it is in %s, want %s (%v)", got, bin, err)
			}
		})
	}
	both.Wait()
	if info, err := os.Stat(filepath.Join(bin, "pg_ctl")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("not everybody can run it: %+v (%v)", info, err)
	}
	m.archive, told = nil, nil
	serves(t, started(t, o), "from "+bin)
	if told != nil {
		t.Errorf("it is in the cache, and told: %q", told)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) != 1 {
		t.Errorf("in the cache: %q", left)
	}
}

// What cannot work is one sentence that says what to do, and leaves nothing that a later start would run.
func TestNothingToStart(t *testing.T) {
	m, cache := onlyGo(t)
	whole := m.archive
	quiet := func(string) {}
	for why, breaks := range map[string]func(){
		"no version found matching 17.": func() { m.archive = nil },
		"checksums do not match":        func() { m.checksum[0]++ },
		"enough":                        nil,
	} {
		t.Run(why, func(t *testing.T) {
			m.archive, m.checksum, m.asked = whole, sha256.Sum256(whole), func() {}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			sent := make(chan struct{})
			start := "no Postgres can be started (PostgreSQL is not installed; no docker command in PATH; PostgreSQL 17."
			if breaks != nil {
				breaks()
			} else {
				start = "pgserver: the start was given up: "
				m.asked = func() { cancel(errors.New("enough")); <-sent; panic(http.ErrAbortHandler) }
			}
			_, err := Start(ctx, Options{Notice: quiet})
			close(sent)
			for left := []string{""}; len(left) > 0; { // until what was given up has ended too
				left, _ = filepath.Glob(filepath.Join(cache, "unpacking-*"))
			}
			if err == nil || !strings.HasPrefix(err.Error(), start) || !strings.Contains(err.Error(), why) || len(err.Error()) > 250 || strings.Contains(err.Error(), "\n") {
				t.Errorf("it says: %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(cache, "postgres-*")); left != nil {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestSources(t *testing.T) {
	for _, c := range []struct {
		forced string
		from   []Source
		want   string
	}{
		{"", nil, "[local docker embedded]"},
		{"embedded", nil, "[embedded]"},
		{"docker", nil, "[local docker]"},
		{"url", nil, "[local docker]"},
		{"embedded", []Source{Local, Docker}, "[local docker]"},
		{"embedded", []Source{Local, Embedded}, "[embedded]"},
		{"local", []Source{Embedded}, "[embedded]"},
	} {
		t.Setenv(EnvSource, c.forced)
		if got := fmt.Sprint(Options{From: c.from}.sources()); got != c.want {
			t.Errorf("%s=%s, From %v: %s, want %s", EnvSource, c.forced, c.from, got, c.want)
		}
	}
}
