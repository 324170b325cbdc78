//go:build !unix

package pgserver

import (
	"context"
	"errors"
	"os/exec"
)

func startLocal(context.Context, Options) (*Server, error) {
	return nil, errors.New("PostgreSQL's binaries are run on Unix only: use Docker")
}

func startEmbedded(ctx context.Context, o Options) (*Server, error) { return startLocal(ctx, o) }

// There is no guard here: a container outlives this process if that is killed.
const hasGuard = false

func joinGroup(*exec.Cmd, int) {}
