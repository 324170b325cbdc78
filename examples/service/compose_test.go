package main

import (
	"os"
	"path/filepath"
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

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
