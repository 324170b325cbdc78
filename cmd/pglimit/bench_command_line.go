package main

import (
	"regexp"
	"strings"
)

// commandLine returns how the program was called, for a report: quoted for a shell, and without the connection string,
// which may have a password.
func (a *app) commandLine() string {
	const flag = "--database-url"
	words := []string{"pglimit"}
	hidden := false
	for _, arg := range a.args {
		switch {
		case hidden:
			arg = "..."
		case strings.HasPrefix(arg, flag+"="):
			arg = flag + "=..."
		}
		hidden = arg == flag
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " ")
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]+$`)

// quoted for a shell.
func quoted(arg string) string {
	if plain.MatchString(arg) {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
