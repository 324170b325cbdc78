package grpclimit_test

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The code of docs/grpc.md is that of the examples, and its service config is one.
func TestDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/grpc.md")
	must(t, err)
	examples, err := os.ReadFile("example_test.go")
	must(t, err)
	words := func(code string) string { return strings.Join(strings.Fields(code), " ") }
	blocks := strings.Split(string(page), "```")
	if len(blocks) != 9 {
		t.Fatalf("there are %d blocks of code, not 4", len(blocks)/2)
	}
	for _, i := range []int{1, 5, 7} {
		for line := range strings.Lines(strings.TrimPrefix(blocks[i], "go\n")) {
			if !strings.Contains(words(string(examples)), words(line)) {
				t.Errorf("no example has the line %s", line)
			}
		}
	}
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(strings.TrimPrefix(blocks[3], "json")))
	must(t, err)
	_ = conn.Close()
}
