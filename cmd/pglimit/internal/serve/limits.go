package serve

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/yamlfile"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Limit is a limiter as it is configured.
type Limit struct {
	Strategy pglimit.Strategy
	Config   pglimit.Config
}

// file is what a configuration file holds.
type file struct {
	Limiters map[string]settings `yaml:"limiters"`
}

// settings of one limiter. What is left out is as in [pglimit.Config].
type settings struct {
	Limit      string        `yaml:"limit"`
	Strategy   string        `yaml:"strategy"`
	Timeout    time.Duration `yaml:"timeout"`
	OnError    string        `yaml:"on_error"`
	Instances  int           `yaml:"instances"`
	Durability string        `yaml:"durability"`
	IDTTL      time.Duration `yaml:"id_ttl"`
	MaxWaiting int           `yaml:"max_waiting"`
	Lanes      int           `yaml:"lanes"`
	MemoryTTL  time.Duration `yaml:"memory_ttl"`
	Leases     bool          `yaml:"leases"`
	LeaseTTL   time.Duration `yaml:"lease_ttl"`
	Block      pglimit.Block `yaml:"block"`
	NewKeys    string        `yaml:"new_keys"`
}

const (
	limiterFields = "limit, strategy, timeout, on_error, instances, durability, id_ttl, max_waiting, lanes, " +
		"memory_ttl, leases, lease_ttl, block, new_keys"
	blockFields = "after, within, for, max, forget"
)

// ReadFile reads limiters from a YAML file, sorted by name. Errors name the file, and the line or
// the field.
func ReadFile(name string) ([]Limit, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	limits, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return limits, nil
}

func parse(text []byte) ([]Limit, error) {
	if err := yamlfile.Named(text); err != nil {
		return nil, err
	}
	var f file
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil && len(bytes.TrimSpace(text)) > 0 {
		return nil, yamlfile.Explain(text, err, values...)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one YAML document in it: put all limiters into the first")
	}
	if len(f.Limiters) == 0 {
		return nil, errors.New("there are no limiters in it: write \"limiters:\", and below that a name with its " +
			"settings, such as \"api: {limit: 10/s burst 20}\"")
	}
	var limits []Limit
	for _, name := range slices.Sorted(maps.Keys(f.Limiters)) {
		limit, err := f.Limiters[name].build(name)
		if err != nil {
			return nil, fmt.Errorf("limiters.%s: %s", name, inFile(err))
		}
		limits = append(limits, limit)
	}
	return limits, nil
}

// values explains the values of the file.
var values = []yamlfile.Value{
	{Type: "serve.file", Is: "a file of limiters: write \"limiters:\", and below that a name with its settings",
		Fields: "limiters"},
	{Type: "map[string]serve.settings", Is: "limiters by name: write them like \"api: {limit: 10/s burst 20}\""},
	{Type: "serve.settings", Is: "the settings of a limiter: write them like {limit: 10/s burst 20}",
		Fields: limiterFields},
	{Type: "rate.Block", Is: "the settings of a block", Fields: blockFields},
}

// build makes the configuration, and checks it. Errors name the field.
func (s settings) build(name string) (l Limit, err error) {
	if l.Strategy, err = strategies.ByName(cmp.Or(s.Strategy, strategies.TokenBucket{}.Name())); err != nil {
		return l, err
	}
	c := pglimit.Config{
		Name: name, Timeout: s.Timeout, IDTTL: s.IDTTL, MaxWaiting: s.MaxWaiting, Block: s.Block,
		Combine: pglimit.Combine{Lanes: s.Lanes},
		Memory:  pglimit.Memory{TTL: s.MemoryTTL},
		Leases:  pglimit.Leases{On: s.Leases, TTL: s.LeaseTTL},
	}
	if c.Limit, err = pglimit.ParseLimit(s.Limit); err != nil {
		return l, err
	}
	if s.Timeout < 0 {
		return l, fmt.Errorf("timeout is %v: it must be positive", s.Timeout)
	}
	if c.Durability, err = pglimit.ParseDurability(cmp.Or(s.Durability, pglimit.Relaxed.String())); err != nil {
		return l, err
	}
	if s.NewKeys != "" {
		if c.NewKeys.Limit, err = pglimit.ParseLimit(s.NewKeys); err != nil {
			return l, fmt.Errorf("new_keys: %s", bare(err))
		}
	}
	if err = s.fallback(&c); err != nil {
		return l, err
	}
	l.Config = c
	return l, c.Validate(l.Strategy)
}

// fallback sets what the limiter answers when no decision is known.
func (s settings) fallback(c *pglimit.Config) error {
	switch {
	case s.OnError == "local" && s.Instances < 1:
		return fmt.Errorf("instances is %d: on_error: local needs the number of instances of pglimit serve that "+
			"share the limit, at least 1", s.Instances)
	case s.OnError == "local":
		c.OnError = pglimit.FailLocal(s.Instances)
	case s.Instances != 0:
		return errors.New("instances goes with on_error: local only")
	case s.OnError == "open":
		c.OnError = pglimit.FailOpen
	case s.OnError == "closed":
		c.OnError = pglimit.FailClosed
	case s.OnError != "" && s.OnError != "error":
		return fmt.Errorf("on_error is %q: it must be error, open, closed or local", s.OnError)
	}
	return nil
}

// fields of the file that are not named as those of Config are.
var fields = map[string]string{
	"Name": "the name", "IDTTL": "id_ttl", "MaxWaiting": "max_waiting", "Combine.Lanes": "lanes",
	"Memory.TTL": "memory_ttl", "Leases.On": "leases", "Leases.TTL": "lease_ttl", "NewKeys.Limit": "new_keys",
}

// inFile is the error's text in the words of the file.
func inFile(err error) string {
	var config *pglimit.ConfigError
	if !errors.As(err, &config) {
		return bare(err)
	}
	return cmp.Or(fields[config.Field], strings.ToLower(config.Field)) + " " + bare(config.Err)
}

// bare is the error's text without the names of our packages and types.
func bare(err error) string {
	var limit *pglimit.LimitError
	var blocked *pglimit.BlockError
	switch {
	case errors.As(err, &limit):
		return strings.ToLower(limit.Field) + " " + limit.Why
	case errors.As(err, &blocked):
		return strings.ToLower(blocked.Field + " " + blocked.Why) // which names other fields of Block
	}
	return strings.NewReplacer("pglimit: ", "", "strategies: ", "", ": unsupported operation", "",
		"Config.Block", "block", "Config.NewKeys", "new_keys").Replace(err.Error())
}
