package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func decode[T any](t *testing.T, file string) (v T) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

// What the containers are given is there, and they call each other by the names they have.
func TestCompose(t *testing.T) {
	t.Parallel()
	compose := decode[struct {
		Services map[string]struct {
			Build                   struct{ Context, Dockerfile string }
			Command, Volumes, Ports []string
			Environment             map[string]string
		}
	}](t, "docker-compose.yaml")
	mounted := 0
	for name, s := range compose.Services {
		for _, volume := range s.Volumes {
			mounted++
			if from, _, _ := strings.Cut(volume, ":"); !isFile(from) {
				t.Errorf("%s: there is no file %s", name, from)
			}
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: port %s is open to the network", name, port)
			}
		}
		if strings.HasPrefix(name, "instance") && !isFile(filepath.Join(s.Build.Context, s.Build.Dockerfile)) {
			t.Errorf("%s: there is no file %s in %s", name, s.Build.Dockerfile, s.Build.Context)
		}
	}
	if len(compose.Services) != 5 || mounted != 5 {
		t.Errorf("%d services with %d files", len(compose.Services), mounted)
	}

	prometheus := decode[struct {
		Scrape []struct {
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}](t, "prometheus.yaml")
	for _, target := range prometheus.Scrape[0].Static[0].Targets {
		name, port, _ := strings.Cut(target, ":")
		if _, there := compose.Services[name]; !there || port != "8080" {
			t.Errorf("there is no %s", target)
		}
	}
}

// What an image is built from leaves out the history, and nothing that the programs need.
func TestDockerignore(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	needed, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		`{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`, ".", "../../cmd/pglimit").Output()
	if err != nil {
		t.Fatal(err)
	}
	ignored := strings.Fields(regexp.MustCompile(`(?m)^#.*`).ReplaceAllString(string(text), ""))
	ours := 0
	for file := range strings.Lines(string(needed)) {
		path, is := strings.CutPrefix(strings.TrimSpace(file), root+"/")
		if !is {
			continue
		}
		ours++
		for _, pattern := range ignored {
			end, anywhere := strings.CutPrefix(pattern, "**/")
			if anywhere && strings.HasSuffix(path, strings.TrimPrefix(end, "*")) || path == pattern || strings.HasPrefix(path, pattern+"/") {
				t.Errorf("%s leaves out %s", pattern, path)
			}
		}
	}
	if ours < 100 || !slices.Contains(ignored, ".git") {
		t.Errorf("%d files are needed, and %q left out", ours, ignored)
	}
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
