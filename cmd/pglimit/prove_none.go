//go:build !unix

package main

import "github.com/spf13/cobra"

// newProveCommands returns none: what it does to processes needs the signals of Unix.
func newProveCommands(*app) []*cobra.Command { return nil }
