package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cliKnowsTheCommandsOfBench checks every command of docs/bench.md and its flags by --help: to run them
// all would take an hour. TestBench and its like run the loads.
func cliKnowsTheCommandsOfBench(t *testing.T, c cli) {
	text, blocks := readPage(t, "bench.md")
	known := c.knowsInlineCommands(t, text)
	for _, b := range blocks {
		if b.language == "text" {
			continue
		}
		if b.language != "sh" {
			t.Errorf("bench.md has a block of %q, which nobody tests", b.language)
		}
		for line := range strings.Lines(strings.ReplaceAll(b.code, "\\\n", " ")) {
			command, _, _ := strings.Cut(line, "#")
			command, _, _ = strings.Cut(command, " > ")
			if strings.TrimSpace(command) != "" {
				c.runShell(t, 0, strings.TrimSpace(command)+" --help")
				known++
			}
		}
	}
	if known < 15 {
		t.Errorf("%d commands were found", known)
	}
}

// goCommand is a line of shell that runs go, in the clone or in one of its folders.
var goCommand = regexp.MustCompile(`^(?:\(cd (\S+) && )?(go (?:run|test|install|mod) .*?)\)?$`)

func onlyGoCommands(lines string) bool {
	for line := range strings.Lines(lines) {
		if !goCommand.MatchString(withoutComment(line)) {
			return false
		}
	}
	return true
}

func withoutComment(line string) string {
	line, _, _ = strings.Cut(line, "#")
	return strings.TrimSpace(line)
}

var (
	inlineGo      = regexp.MustCompile("`(go [^`]*)`")
	moduleLine    = regexp.MustCompile(`(?m)^module (\S+)$`)
	replaceModule = regexp.MustCompile(`^go mod edit -replace=(\S+)=\.\./pglimit(\S*)$`)
)

// The commands of go that the pages show name packages, tests, benchmarks and modules that exist. CI
// runs "go test" as the README says; TestBench runs what "go run ./cmd/pglimit bench" does.
func TestGoCommandsOfTheDocs(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, name := range pages() {
		text, blocks := readPage(t, name)
		var lines []string
		for _, b := range blocks {
			if b.language == "sh" {
				lines = append(lines, strings.Split(b.code, "\n")...)
			}
		}
		for _, found := range inlineGo.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			lines = append(lines, found[1])
		}
		for _, line := range lines {
			if found := goCommand.FindStringSubmatch(withoutComment(line)); found != nil {
				checkGoCommand(t, name, filepath.Join("..", found[1]), found[2])
				checked++
			}
		}
	}
	if checked < 15 {
		t.Errorf("%d commands were found", checked)
	}
}

var branch = regexp.MustCompile(`\bpglimit ([a-z]+)[^|&\n]*(?:\|\||&&)`)

// Commands whose exit code is an answer. The others exit with 0 whatever they find, so a script that
// branches on one of them always goes the same way, which running it does not show.
func TestThePagesBranchOnAnswersOnly(t *testing.T) {
	t.Parallel()
	found := 0
	for _, name := range pages() {
		_, blocks := readPage(t, name)
		for _, b := range blocks {
			for _, line := range branch.FindAllStringSubmatch(b.code, -1) {
				found++
				if !slices.Contains([]string{"allow", "run", "migrate"}, line[1]) {
					t.Errorf("%s: %s: the exit code of %s is no answer", name, line[0], line[1])
				}
			}
		}
	}
	if found == 0 {
		t.Error("none was found")
	}
}

// checkGoCommand checks what a command names, which runs in dir.
func checkGoCommand(t *testing.T, page, dir, command string) {
	t.Helper()
	if replaced := replaceModule.FindStringSubmatch(command); replaced != nil {
		text, err := os.ReadFile(filepath.Join(dir, replaced[2], "go.mod"))
		must(t, err)
		if module := moduleLine.FindStringSubmatch(string(text)); module[1] != replaced[1] {
			t.Errorf("%s: %s: the module there is %s", page, command, module[1])
		}
		return
	}
	var tests []string
	packages := []string{}
	words := strings.Fields(command)
	for i, word := range words {
		switch {
		case strings.HasPrefix(word, "./"):
			path := strings.TrimSuffix(strings.TrimSuffix(word, "..."), "/")
			packages = append(packages, filepath.Join(dir, path))
			if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
				t.Errorf("%s: %s: %v", page, command, err)
			}
		case word == "-bench" && words[i+1] != ".":
			tests = append(tests, "func Benchmark\\w*"+words[i+1])
		case word == "-run" && words[i+1] != "xxx": // no test has that name: only benchmarks run
			tests = append(tests, "func "+words[i+1])
		}
	}
	for _, test := range tests {
		found := false
		for _, dir := range packages {
			files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
			must(t, err)
			for _, file := range files {
				text, err := os.ReadFile(file)
				must(t, err)
				found = found || regexp.MustCompile(test).Match(text)
			}
		}
		if !found {
			t.Errorf("%s: %s: there is no %s", page, command, test)
		}
	}
}
