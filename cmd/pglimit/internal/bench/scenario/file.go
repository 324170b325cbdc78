package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/yamlfile"
	"github.com/pglimit/ratelimit/pglimit"
)

// document is a scenario in a file: its fields, and those that are written otherwise there.
type document struct {
	Scenario   `yaml:",inline"`
	Limit      string `yaml:"limit"`
	Durability string `yaml:"durability"`
}

func (s Scenario) document() document {
	return document{Scenario: s, Limit: s.Limit.String(), Durability: s.Durability.String()}
}

func (d document) scenario() (s Scenario, err error) {
	s = d.Scenario
	if s.Limit, err = pglimit.ParseLimit(d.Limit); err != nil {
		return s, fmt.Errorf("limit: %w", err)
	}
	if s.Durability, err = pglimit.ParseDurability(d.Durability); err != nil {
		return s, fmt.Errorf("durability: %w", err)
	}
	return s, nil
}

// reported is a scenario in a report: what a plan says, and what only those that have a name can have.
type reported struct {
	document `yaml:",inline"`
	StagesOf string `yaml:"stages-of,omitempty"`
	AtMost   int64  `yaml:"at-most,omitempty"`
}

// MarshalJSON writes the scenario with the names and values of a plan.
func (s Scenario) MarshalJSON() ([]byte, error) {
	text, err := yaml.Marshal(reported{s.document(), s.StagesOf, s.AtMost})
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// UnmarshalJSON reads what [Scenario.MarshalJSON] has written: JSON is YAML.
func (s *Scenario) UnmarshalJSON(text []byte) (err error) {
	var r reported
	if err := yaml.Unmarshal(text, &r); err != nil {
		return err
	}
	*s, err = r.scenario()
	s.StagesOf, s.AtMost = r.StagesOf, r.AtMost
	return err
}

// values of a file, in words.
var values = []yamlfile.Value{
	{Type: "scenario.document", Is: "a scenario"},
	{Type: "scenario.Phase", Is: "a phase", Fields: "rate, duration"}, {Type: "[]scenario.Phase", Is: "a list of phases"},
	{Type: "scenario.Cost", Is: "a cost", Fields: "tokens, share"}, {Type: "[]scenario.Cost", Is: "a list of costs"},
}

// ReadFile reads scenarios from a YAML file, each a document of its own (separated by a line of three dashes). What is
// left out is as in [Custom]. Errors name the file, the scenario and the field.
func ReadFile(name string) ([]Scenario, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	scenarios, err := read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return scenarios, nil
}

func read(text []byte) (scenarios []Scenario, err error) {
	if err := yamlfile.Named(text); err != nil {
		return nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	for {
		d := Custom().document()
		d.Name, d.Title = "", ""
		switch err := decoder.Decode(&d); {
		case errors.Is(err, io.EOF) && len(scenarios) == 0:
			return nil, errors.New("it is empty")
		case errors.Is(err, io.EOF):
			return scenarios, nil
		case err != nil:
			return nil, yamlfile.Explain(text, err, values...)
		case d.Name == "":
			return nil, fmt.Errorf("scenario %d has no name", len(scenarios)+1)
		}
		if d.Title == "" {
			d.Title = d.Name
		}
		s, err := d.scenario()
		if err == nil {
			err = s.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("scenario %q: %w", d.Name, err)
		}
		scenarios = append(scenarios, s)
	}
}

// Set sets a field by its name in a file, or one of these: rps makes it an open loop of that rate, duration makes all
// phases together as long, and burst is that of the limit. The write-up's criterion is for its own limit and key.
func (s *Scenario) Set(field, value string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s is %q: %w", field, value, err)
		}
	}()
	switch field {
	case "rps":
		rate, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return errors.New("it must be a number")
		}
		s.Phases = []Phase{{rate, s.Length()}}
		return nil
	case "duration":
		length, err := time.ParseDuration(value)
		if err != nil {
			return errors.New("it must be a duration such as 500ms or 1m30s")
		}
		*s = s.lasting(length)
		return nil
	case "burst":
		burst, err := strconv.ParseInt(value, 10, 64)
		if err != nil || burst < 1 {
			return errors.New("it must be a whole number, at least 1")
		}
		s.Limit, s.AtMost = s.Limit.WithBurst(burst), 0
		return nil
	case "limit", "keys":
		s.AtMost = 0
	}
	text := []byte(field + ": " + value)
	d := s.document()
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil {
		return errors.New(strings.TrimPrefix(yamlfile.Explain(text, err, values...).Error(), "line 1: "))
	}
	*s, err = d.scenario()
	return err
}
