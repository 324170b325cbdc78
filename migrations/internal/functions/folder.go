package functions

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Generate makes the newest migration of functions for the folder migrations. It returns
// the file's path and what to write to it. With release that is a new file, with the next
// number: use it once the newest one is published.
func Generate(migrations string, release bool) (path, text string, err error) {
	current, err := read(filepath.Join(migrations, "functions", "*.sql"))
	if err != nil {
		return "", "", err
	}
	all, err := filepath.Glob(filepath.Join(migrations, "sql", "*.sql"))
	if err != nil {
		return "", "", err
	}
	generated, err := filepath.Glob(filepath.Join(migrations, "sql", "*_functions.sql"))
	if err != nil {
		return "", "", err
	}
	if release || len(generated) == 0 {
		// Migrations are numbered from 1 without gaps.
		generated = append(generated, filepath.Join(migrations, "sql", fmt.Sprintf("%05d_functions.sql", len(all)+1)))
	}
	previous := ""
	if n := len(generated); n > 1 {
		text, err := os.ReadFile(generated[n-2])
		if err != nil {
			return "", "", err
		}
		previous = string(text)
	}
	text, err = File(previous, current)
	return generated[len(generated)-1], text, err
}

// read returns the text of each file, by its name without ".sql".
func read(pattern string) (map[string]string, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[strings.TrimSuffix(filepath.Base(path), ".sql")] = string(text)
	}
	return files, nil
}
