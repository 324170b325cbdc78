package yamlfile

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Named refuses a null key, with its line: the decoder would silently leave it out, with its value. All other faults
// are left to the decoder.
func Named(text []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	for decoder.Decode(&document) == nil {
		if line := nullKey(&document); line > 0 {
			return fmt.Errorf("line %d: a name is missing here, or is ~ or null: quote it if that is meant", line)
		}
	}
	return nil
}

// nullKey returns the line of the first null key, or 0.
func nullKey(node *yaml.Node) int {
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 && child.ShortTag() == "!!null" {
			return child.Line
		}
		if line := nullKey(child); line > 0 {
			return line
		}
	}
	return 0
}
