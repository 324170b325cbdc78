package main

import (
	"fmt"
	"io"
)

// app is what all commands share: where to find the database and how to answer.
// The flags of the root command fill it in before any command runs.
type app struct {
	databaseURL string // --database-url; empty: the environment decides
	output      string // --output: outputText or outputJSON
	args        []string
	stdout      io.Writer
	stderr      io.Writer
}

// Values of --output.
const (
	outputText = "text"
	outputJSON = "json"
)

// Exit codes. A command that answers a question does so by its exit code, so that a shell
// script can branch on it.
const (
	exitDenied  exitCode = 1
	exitPending exitCode = 1
	exitFailed  exitCode = 2
)

// exitCode, returned as an error, ends the process with that code and prints nothing: the command has already printed
// everything.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }
