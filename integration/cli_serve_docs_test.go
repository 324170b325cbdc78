package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var (
	// What differs from run to run: times, and tokens that came back meanwhile.
	moment = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|(?:Date: [^\r\n]*)`)
	number = regexp.MustCompile(`\d+`)
)

// sameButNumbers compares what a page shows with what was printed.
func sameButNumbers(shown, printed string) bool {
	bare := func(text string) string {
		text = moment.ReplaceAllString(strings.ReplaceAll(text, "\r", ""), "TIME")
		return strings.TrimSpace(number.ReplaceAllString(text, "N"))
	}
	return bare(shown) == bare(printed)
}

// Every file and request of docs/serve.md works, and is answered as the page says.
func cliRunsServeDocs(t *testing.T, c cli) {
	text, err := os.ReadFile("../docs/serve.md")
	must(t, err)
	c, _ = c.onMigrated(t)
	dir := t.TempDir()
	config, tokens := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "token")
	must(t, os.WriteFile(tokens, []byte("0123456789abcdef\n"), 0o600))

	blocks := map[string][]string{}
	for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
		blocks[block[1]] = append(blocks[block[1]], block[2])
	}
	// No answer depends on how busy the machine is.
	patient := strings.ReplaceAll(blocks["yaml"][0], "    limit:", "    timeout: 30s\n    memory_ttl: 1h\n    limit:")
	must(t, os.WriteFile(config, []byte(patient), 0o600))
	process, url, wait := c.serves(t, "--config", config, "--drain", "0")
	here := strings.NewReplacer("http://127.0.0.1:8080", url, "timeout=2)", "timeout=60)", "timeout(2000)", "timeout(60000)")

	requests := 0
	for _, block := range blocks["console"] {
		for part := range strings.SplitSeq("\n"+block, "\n$ ") {
			command, shown, _ := strings.Cut(part, "\n")
			if !strings.HasPrefix(command, "curl") {
				continue
			}
			requests++
			printed, err := c.command(t.Context(), t, "sh", "-c", here.Replace(command)+" --silent").CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v", command, err)
			}
			if !sameButNumbers(shown, string(printed)) {
				t.Errorf("%s\nprints\n%s\nand the page says\n%s", command, printed, shown)
			}
		}
	}
	if requests < 8 {
		t.Errorf("%d requests were found", requests)
	}
	for language, run := range map[string][]string{"python": {"python3", "-c"}, "js": {"node", "--input-type=module", "-e"}} {
		if len(blocks[language]) != 1 {
			t.Errorf("%d programs in %s were found", len(blocks[language]), language)
			continue
		}
		if _, err := exec.LookPath(run[0]); err != nil {
			t.Logf("%s is not here: %v", run[0], err)
			continue
		}
		program := here.Replace(blocks[language][0])
		program += map[string]string{
			"python": "\nassert allow('api', 'of python').allowed\nassert allow('login', 'of python', 5).allowed\nassert allow('login', 'of python').retry_after > 0\n",
			"js":     "\nif (!(await allow('api', 'of js')).allowed || (await allow('login', 'of js', 6)).allowed !== undefined) throw 'no';\n",
		}[language]
		if out, err := c.command(t.Context(), t, run[0], append(run[1:], program)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", language, err, out)
		}
	}
	must(t, process.Signal(syscall.SIGTERM))
	if code, stderr := wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}
