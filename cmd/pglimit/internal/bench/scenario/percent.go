package scenario

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Percent is a share that is written as 1% or 0.01. It is a flag's value, and a field's.
type Percent float64

// Set parses the text of a flag.
func (p *Percent) Set(text string) error {
	digits, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	share, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if err != nil {
		return errors.New("it must be a share such as 1% or 0.01")
	}
	if percent {
		share /= 100
	}
	*p = Percent(share)
	return nil
}

func (p *Percent) String() string {
	if *p == 0 {
		return ""
	}
	return strconv.FormatFloat(100*float64(*p), 'g', -1, 64) + "%"
}

// Type is for the help.
func (*Percent) Type() string { return "share" }

// UnmarshalYAML parses the text of a field.
func (p *Percent) UnmarshalYAML(node *yaml.Node) error {
	if err := p.Set(node.Value); err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	return nil
}
