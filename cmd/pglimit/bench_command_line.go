package main

import (
	"net/url"
	"regexp"
	"strings"
)

// commandLine returns how the program was called, for a report: without passwords, and quoted for a shell.
func (a *app) commandLine() string {
	words := []string{"pglimit"}
	for _, arg := range a.args {
		name, value, assigned := strings.Cut(arg, "=")
		if assigned && name == "--database-url" {
			arg = name + "=" + withoutPassword(value)
		} else {
			arg = withoutPassword(arg)
		}
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " ")
}

var passwordField = regexp.MustCompile(`(?is)\b(password|sslpassword)\s*=\s*('(?:[^'\\]|\\.)*'|(?:\\.|\S)+)`)

// withoutPassword removes the password of a connection string in either form. Other text stays as it is.
func withoutPassword(text string) string {
	if u, err := url.Parse(text); err == nil && u.Scheme != "" && u.Host != "" && readAlike(u) {
		query := u.Query()
		for name := range query {
			if strings.Contains(strings.ToLower(name), "password") {
				query.Set(name, "xxxxx")
				u.RawQuery = query.Encode()
			}
		}
		return u.Redacted()
	}
	if scheme, _, is := strings.Cut(text, "://"); is {
		return scheme + "://..." // what cannot be parsed cannot be cleaned
	}
	return passwordField.ReplaceAllString(text, "$1=xxxxx")
}

// readAlike says whether the driver finds the password where package url does. The driver keeps ; and # in the part
// that has them, and ends user and password at the first @, even after a / or a ?.
func readAlike(u *url.URL) bool {
	_, err := url.ParseQuery(u.RawQuery)
	return err == nil && u.Fragment == "" && (u.User != nil || !strings.Contains(u.Path+u.RawQuery, "@"))
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]+$`)

// quoted for a shell.
func quoted(arg string) string {
	if plain.MatchString(arg) {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
