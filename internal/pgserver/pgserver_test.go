package pgserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// needsLocal skips where this machine has no Postgres.
func needsLocal(t *testing.T) {
	t.Helper()
	if len(findBinaries()) == 0 {
		t.Skip("PostgreSQL is not installed")
	}
}

// needsImage returns an image that the engine has; nothing is pulled for a test.
func needsImage(t *testing.T) string {
	t.Helper()
	image := os.Getenv("PGLIMIT_TEST_IMAGE")
	if image == "" {
		image = DefaultImage
	}
	if _, err := docker(t.Context(), "image", "inspect", image); err != nil {
		t.Skipf("no engine that has the image %s: %v", image, err)
	}
	return image
}

func TestDockerServer(t *testing.T) {
	t.Parallel()
	image := needsImage(t)
	s, err := newContainer(image).start(t.Context(), forty2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	restarts(t, s)
	serves(t, s, "in a container of "+image)
}

func TestNothingOfAContainerIsLeft(t *testing.T) {
	t.Parallel()
	image := needsImage(t)
	for _, when := range []string{
		"The files belonging to this database", // it was just created
		"PostgreSQL init process complete",
	} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := newContainer(image)
			c.log = &listener{words: when, then: cancel}
			if _, err := c.start(ctx, nil); err == nil {
				t.Error("it started though it was given up")
			}
			if left, err := docker(t.Context(), "ps", "-aq", "--filter", "name="+c.name); err != nil || left != "" {
				t.Errorf("left behind: %q (%v)", left, err)
			}
		})
	}
}

func TestErrorNamesWhatWasTried(t *testing.T) {
	// Not parallel: the environment is changed.
	t.Setenv("PATH", t.TempDir())
	_, err := Start(t.Context(), Options{From: []Source{Docker}})
	if want := "no Postgres can be started (no docker command in PATH): install PostgreSQL or Docker"; err == nil || err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
	if _, err := Start(t.Context(), Options{From: []Source{"podman"}}); err == nil || !strings.Contains(err.Error(), `"podman"`) {
		t.Errorf("an unknown source: %v", err)
	}
	fake := filepath.Join(os.Getenv("PATH"), "docker")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\n[ $1 = version ] && exit\necho Error response from daemon: no such host; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Options{From: []Source{Docker}})
	if err == nil || !strings.Contains(err.Error(), "the image "+DefaultImage+" is not there and cannot be pulled") || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("an image that cannot be had: %v", err)
	}
}

func TestCancelledStartSaysWhy(t *testing.T) {
	t.Parallel()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := Start(ctx, Options{}); !errors.Is(err, why) {
		t.Errorf("the error is %v, want %v", err, why)
	}
}

func TestNewestBinariesFirst(t *testing.T) {
	t.Parallel()
	folders := []string{"/usr/lib/postgresql/9.6/bin", "/usr/lib/postgresql/15/bin", "/opt/postgresql/bin", "/usr/lib/postgresql/17/bin"}
	newestFirst(folders)
	want := "/usr/lib/postgresql/17/bin /usr/lib/postgresql/15/bin /usr/lib/postgresql/9.6/bin /opt/postgresql/bin"
	if got := strings.Join(folders, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLastWords(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"": "",
		"ok\ninitdb: error: no space\ninitdb: removing data directory\n": "no space",
		"one\ntwo\n\n": "two",
		"x [1] FATAL:  the database system is starting up\nx [2] FATAL:  out of memory\nx LOG:  shut down\n": "out of memory",
		strings.Repeat("long ", tailBytes) + "\nlast":                                                        "last",
	} {
		said := &tail{}
		if _, err := said.Write([]byte(output)); err != nil {
			t.Fatal(err)
		}
		if got := said.lastWords(); got != want {
			t.Errorf("lastWords of %.40q = %q, want %q", output, got, want)
		}
	}
}

// listener calls then, once, when it hears the words.
type listener struct {
	words string
	then  func()
	mu    sync.Mutex
	heard strings.Builder
	once  sync.Once
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard.Write(b)
	if strings.Contains(l.heard.String(), l.words) {
		l.once.Do(l.then)
	}
	return len(b), nil
}
