package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/yamlfile"
	"github.com/pglimit/ratelimit/pglimit"
)

// document is one scenario of a file. Its fields are named like the flags of "pglimit
// bench". What is left out is as in [Custom].
type document struct {
	Name  string `yaml:"name"`
	Title string `yaml:"title"`
	About string `yaml:"about"`

	CompareBy string `yaml:"compare-by"`

	Limit        string  `yaml:"limit"`
	Cost         int64   `yaml:"cost"`
	Costs        []cost  `yaml:"costs"`
	Keys         int     `yaml:"keys"`
	Distribution string  `yaml:"distribution"`
	Exponent     float64 `yaml:"exponent"`
	WithRows     bool    `yaml:"with-rows"`

	Callers   int           `yaml:"callers"`
	Instances int           `yaml:"instances"`
	Conns     int           `yaml:"conns"`
	Phases    []phase       `yaml:"phases"`
	Arrivals  string        `yaml:"arrivals"`
	Warmup    time.Duration `yaml:"warmup"`
	Timeout   time.Duration `yaml:"timeout"`

	Durability string `yaml:"durability"`

	NoCombining bool          `yaml:"no-combining"`
	Lanes       int           `yaml:"lanes"`
	MaxWaiting  int           `yaml:"max-waiting"`
	NoMemory    bool          `yaml:"no-memory"`
	DenialTTL   time.Duration `yaml:"denial-ttl"`
	DenialKeys  int           `yaml:"denial-keys"`
	Leases      bool          `yaml:"leases"`
	LeaseTTL    time.Duration `yaml:"lease-ttl"`
	NoBreaker   bool          `yaml:"no-breaker"`

	Latency time.Duration `yaml:"latency"`
	Lock    Percent       `yaml:"lock"`
	Restart time.Duration `yaml:"restart"`
}

type cost struct {
	Tokens int64   `yaml:"tokens"`
	Share  float64 `yaml:"share"`
}

// phase has a rate, or a rate and another one that it ends with, or none: a closed loop.
type phase struct {
	Rate     float64       `yaml:"rate"`
	RampTo   *float64      `yaml:"ramp-to"`
	Duration time.Duration `yaml:"duration"`
}

// ReadFile reads scenarios from a YAML file, each a document of its own (separated by a
// line of three dashes). Errors name the file, the scenario and the field, which has the
// name of the flag.
func ReadFile(name string) ([]Scenario, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--plan: %w", err)
	}
	scenarios, err := read(text)
	if err != nil {
		return nil, fmt.Errorf("--plan %s: %w", name, err)
	}
	return scenarios, nil
}

// values of the file, in words.
var values = []yamlfile.Value{
	{Type: "scenario.document", Is: "a scenario"}, {Type: "scenario.Percent", Is: "a share such as 1%"},
	{Type: "scenario.phase", Is: "a phase", Fields: "rate, ramp-to, duration"}, {Type: "[]scenario.phase", Is: "a list of phases"},
	{Type: "scenario.cost", Is: "a cost", Fields: "tokens, share"}, {Type: "[]scenario.cost", Is: "a list of costs"},
}

func read(text []byte) (scenarios []Scenario, err error) {
	if err := yamlfile.Named(text); err != nil {
		return nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	taken := map[string]bool{}
	for {
		d := defaults()
		switch err := decoder.Decode(&d); {
		case errors.Is(err, io.EOF) && len(scenarios) == 0:
			return nil, errors.New("it is empty")
		case errors.Is(err, io.EOF):
			return scenarios, nil
		case err != nil:
			return nil, yamlfile.Explain(text, err, values...)
		}
		if d.Name == "" {
			return nil, fmt.Errorf("scenario %d has no name", len(scenarios)+1)
		}
		if taken[d.Name] {
			return nil, fmt.Errorf("there are two scenarios with the name %q", d.Name)
		}
		taken[d.Name] = true
		s, err := d.scenario()
		if err == nil {
			err = s.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("scenario %q: %s", d.Name, strings.ReplaceAll(err.Error(), "--", ""))
		}
		scenarios = append(scenarios, s)
	}
}

// defaults are those of [Custom].
func defaults() document {
	s := Custom()
	return document{
		CompareBy: s.CompareBy, Limit: s.Limit.String(), Cost: s.Costs[0].Tokens,
		Keys: s.Keys, Distribution: s.Distribution, Exponent: s.Exponent,
		Callers: s.Callers, Instances: s.Instances, Conns: s.Conns,
		Phases: []phase{{Duration: s.Length()}}, Arrivals: s.Arrivals, Warmup: s.Warmup,
		Durability: s.Durability.String(),
	}
}

func (d document) scenario() (s Scenario, err error) {
	s = Scenario{
		Name: d.Name, Title: d.Title, About: d.About, CompareBy: d.CompareBy,
		Keys: d.Keys, Distribution: d.Distribution, Exponent: d.Exponent, WithRows: d.WithRows,
		Callers: d.Callers, Instances: d.Instances, Conns: d.Conns,
		Arrivals: d.Arrivals, Warmup: d.Warmup, Timeout: d.Timeout,
		Stages: Stages{
			NoCombining: d.NoCombining, Lanes: d.Lanes, MaxWaiting: d.MaxWaiting,
			NoMemory: d.NoMemory, DenialTTL: d.DenialTTL, DenialKeys: d.DenialKeys,
			Leases: d.Leases, LeaseTTL: d.LeaseTTL, NoBreaker: d.NoBreaker,
		},
		Trouble: Trouble{Latency: d.Latency, LockShare: float64(d.Lock), RestartAfter: d.Restart},
	}
	if s.Title == "" {
		s.Title = s.Name
	}
	if s.Limit, err = pglimit.ParseLimit(d.Limit); err != nil {
		return s, fmt.Errorf("--limit: %w", err)
	}
	if s.Durability, err = pglimit.ParseDurability(d.Durability); err != nil {
		return s, fmt.Errorf("--durability: %w", err)
	}
	for _, c := range d.Costs {
		s.Costs = append(s.Costs, Cost(c))
	}
	if len(s.Costs) == 0 {
		s.Costs = []Cost{{d.Cost, 1}}
	}
	for _, p := range d.Phases {
		to := p.Rate
		if p.RampTo != nil {
			to = *p.RampTo
		}
		s.Phases = append(s.Phases, Phase{p.Rate, to, p.Duration})
	}
	return s, nil
}
