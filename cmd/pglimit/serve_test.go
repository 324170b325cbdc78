package main

import (
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
