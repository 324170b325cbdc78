package deploy_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The workflow tests every module of this repository, those that come later too. Its shell is run with a
// go that says where it is called.
func TestTheWorkflowTestsEveryModule(t *testing.T) {
	t.Parallel()
	var workflow struct {
		Jobs map[string]struct{ Steps []struct{ Run string } }
	}
	text, err := os.ReadFile("../.github/workflows/ci.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &workflow)
	}
	must(t, err)
	tested := ""
	for _, job := range workflow.Jobs {
		for _, step := range job.Steps {
			if !strings.Contains(step.Run, "go test") {
				continue
			}
			shell := exec.CommandContext(t.Context(), "bash", "-euc", `go() { echo "in $PWD: $*"; }`+"\n"+step.Run)
			shell.Dir = ".."
			out, err := shell.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", step.Run, err, out)
			}
			tested += string(out)
		}
	}
	root, err := filepath.Abs("..")
	must(t, err)
	modules := 0
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) != "go.mod" || err != nil {
			return err
		}
		modules++
		if folder := filepath.Dir(path); !strings.Contains(tested, "in "+folder+": test ") {
			t.Errorf("no job tests %s", folder)
		}
		return nil
	})
	if err != nil || modules < 3 {
		t.Errorf("%d modules, %v", modules, err)
	}
}
