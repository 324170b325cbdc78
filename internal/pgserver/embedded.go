//go:build unix

package pgserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// EnvRepository names a mirror of Maven Central, from which an [Embedded] server's binaries come.
const EnvRepository = "PGLIMIT_MAVEN_REPOSITORY"

const (
	mavenCentral    = "https://repo1.maven.org/maven2"
	embeddedVersion = embeddedpostgres.V17 // as DefaultImage
	fetchWithin     = 3 * time.Minute
)

// startEmbedded runs fetched binaries as it runs those of the machine: embedded-postgres's own start
// cannot run them as another user, and leaves a server behind if this process is killed.
func startEmbedded(ctx context.Context, o Options) (*Server, error) {
	bin, err := fetched(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL %s cannot be fetched: %w", embeddedVersion, err)
	}
	return (&local{bin: bin, settings: o.Settings}).start(ctx)
}

// fetched returns the folder of the binaries in the cache. If they are not there, it fetches them.
func fetched(ctx context.Context, o Options) (bin string, err error) {
	account, err := unprivileged()
	if err != nil {
		return "", err
	}
	cache, err := account.cacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s", embeddedVersion, runtime.GOARCH))
	bin = filepath.Join(home, "bin")
	if isExecutable(bin, "postgres") {
		return bin, nil
	}
	repository := cmp.Or(os.Getenv(EnvRepository), mavenCentral)
	o.notice("fetching PostgreSQL %s (about 10 MB, once) from %s into %s", embeddedVersion, repository, home)
	ctx, cancel := context.WithTimeoutCause(ctx, fetchWithin, fmt.Errorf("not done within %v", fetchWithin))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fetch(repository, cache, home) }() // it cannot be cancelled
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return bin, err
}

// fetch unpacks the binaries beside their place and moves them there whole: whoever finds them can
// run them.
func fetch(repository, cache, home string) (err error) {
	if err := errors.Join(os.MkdirAll(cache, 0o755), os.Chmod(cache, 0o755)); err != nil { //nolint:gosec // another user runs what is in it
		return err
	}
	old, _ := filepath.Glob(filepath.Join(cache, "unpacking-*")) // perhaps of a process that was killed
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(dir)
		}
	}
	work := filepath.Join(cache, "unpacking-"+rand.Text())
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	unpacked := filepath.Join(work, "postgres")
	if err := unpack(repository, work, unpacked); err != nil {
		return err
	}
	if err := openToAll(unpacked); err != nil {
		return err
	}
	if err := os.Rename(unpacked, home); err != nil && !isExecutable(filepath.Join(home, "bin"), "postgres") {
		return err // else another process was faster
	}
	return nil
}

// unpack has embedded-postgres fetch and unpack the binaries, which it does only on the way to a start.
// That start fails, as it must: its data folder has nothing but a version, so there is no initdb either.
func unpack(repository, work, into string) error {
	data := filepath.Join(work, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(embeddedVersion), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedVersion).
		BinaryRepositoryURL(repository).
		CachePath(filepath.Join(work, "archive")).
		RuntimePath(filepath.Join(work, "runtime")).
		BinariesPath(into).
		DataPath(data).
		Port(uint32(port)). //nolint:gosec // a port
		Logger(io.Discard)).Start()
	if err != nil && !strings.HasPrefix(err.Error(), "could not start postgres") {
		return err
	}
	return nil
}
