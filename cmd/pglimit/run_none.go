//go:build !unix

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func (a *app) runCommand(*cobra.Command, *runFlags, []string) error {
	return errors.New("run needs Linux or another Unix")
}
