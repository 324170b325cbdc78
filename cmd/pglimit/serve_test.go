package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAddressesWithoutAPortAreRefused(t *testing.T) {
	t.Parallel()
	for address, why := range map[string]string{
		"": "missing port", "8080": "missing port", "127.0.0.1:": "missing port", ":99999": "invalid port", ":none": "unknown port",
		"http://127.0.0.1:80": "too many colons", "::1:80": "too many colons", "[::1": "missing ']'",
	} {
		_, err := listen(t.Context(), "--listen", address)
		if err == nil || !strings.HasPrefix(err.Error(), "--listen: ") || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "write it like 127.0.0.1:8080") {
			t.Errorf("%q: %v, want %s", address, err, why)
		}
	}
}

func TestTokenFileHasCommentsAndBlankLines(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "tokens")
	for text, want := range map[string]string{
		"# of the shop\nfirst-0123456789abcdef\n\n  # short\n second-0123456789abcdef \r\n": "",
		"# one\n\nshort\n":                           name + ", line 3: a token must have at least 16 characters",
		"first-0123456789abcdef\nwith space 0123456": name + ", line 2: a token must have at least 16 characters and no spaces",
		"# first-0123456789abcdef\n":                 "has no token",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := (&serveFlags{tokenFile: name}).readTokens()
		switch {
		case want == "" && (err != nil || !slices.Equal(got, []string{"first-0123456789abcdef", "second-0123456789abcdef"})):
			t.Errorf("%q: %q, %v", text, got, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, not %s", text, err, want)
		case err != nil && (strings.Contains(err.Error(), "short") || strings.Contains(err.Error(), "with space")):
			t.Errorf("the error tells the token: %v", err)
		}
	}
}
