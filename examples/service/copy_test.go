package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What the README says of service.go holds: it compiles by itself, and imports nothing that a service elsewhere could not.
func TestServiceCanBeCopied(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("service.go")
	if err != nil {
		t.Fatal(err)
	}
	copied := strings.Replace(string(text), "package main\n", "package copied\n", 1) // there is no main function in it
	if strings.Contains(copied, "/internal/") {
		t.Error("it imports an internal package")
	}

	// The copy lies in a folder of its own, which only this call of the compiler sees.
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	file, overlay := filepath.Join(t.TempDir(), "service.go"), filepath.Join(t.TempDir(), "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "copied", "service.go"): file}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{file: copied, overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "./copied").CombinedOutput(); err != nil {
		t.Errorf("it does not compile: %v\n%s", err, out)
	}
}
