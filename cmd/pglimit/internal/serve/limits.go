package serve

import (
	"bytes"
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
	Block      *block        `yaml:"block"`
	NewKeys    string        `yaml:"new_keys"`
}

type block struct {
	After  int64         `yaml:"after"`
	Within time.Duration `yaml:"within"`
	For    time.Duration `yaml:"for"`
	Max    time.Duration `yaml:"max"`
	Forget time.Duration `yaml:"forget"`
}

const (
	limiterFields = "limit, strategy, timeout, on_error, instances, durability, id_ttl, max_waiting, lanes, " +
		"memory_ttl, leases, lease_ttl, block, new_keys"
	blockFields = "after, within, for, max, forget"
)

// ReadFile reads limiters from a YAML file, sorted by name. Errors name the file, the line and
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

// ParseLimit reads a limiter from a text such as "api=10/s burst 20".
func ParseLimit(text string) (Limit, error) {
	name, limit, ok := strings.Cut(text, "=")
	name = strings.TrimSpace(name)
	if !ok || name == "" {
		return Limit{}, fmt.Errorf("%q is not a name and a limit: write it like \"api=10/s burst 20\"", text)
	}
	made, field, err := settings{Limit: limit}.build(name)
	if err != nil {
		return Limit{}, fmt.Errorf("%q: %s", text, named(field, err))
	}
	return made, nil
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
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, yamlfile.Explain(text, err, values...)
	}
	var limits []Limit
	for _, name := range slices.Sorted(maps.Keys(f.Limiters)) {
		limit, field, err := f.Limiters[name].build(name)
		if err != nil {
			return nil, fmt.Errorf("line %d: limiters.%s: %s",
				lineOf(&root, append([]string{"limiters", name}, strings.Fields(field)...)...), name, named(field, err))
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
	{Type: "serve.block", Is: "the settings of a block", Fields: blockFields},
}

// lineOf returns the line of the innermost of the keys that exists.
func lineOf(node *yaml.Node, keys ...string) int {
	if node.Kind == yaml.DocumentNode {
		node = node.Content[0]
	}
	line := node.Line
	for _, key := range keys {
		i := 0
		for i+1 < len(node.Content) && node.Content[i].Value != key {
			i += 2
		}
		if node.Kind != yaml.MappingNode || i+1 >= len(node.Content) {
			break
		}
		line, node = node.Content[i].Line, node.Content[i+1]
	}
	return line
}

// build makes the configuration, and checks it. If it is refused, field names the cause.
func (s settings) build(name string) (l Limit, field string, err error) {
	l.Strategy = strategies.TokenBucket{}
	if s.Strategy != "" {
		if l.Strategy, err = strategies.ByName(s.Strategy); err != nil {
			return l, "strategy", fmt.Errorf("is %q: %w", s.Strategy, err)
		}
	}
	if s.Limit == "" {
		return l, "limit", errors.New("is missing: write it like \"10/s burst 20\"")
	}
	limit, err := pglimit.ParseLimit(s.Limit)
	if err != nil {
		return l, "limit", err
	}
	l.Config = pglimit.Config{
		Name: name, Limit: limit, Timeout: s.Timeout, IDTTL: s.IDTTL, MaxWaiting: s.MaxWaiting,
		Combine: pglimit.Combine{Lanes: s.Lanes},
		Memory:  pglimit.Memory{TTL: s.MemoryTTL},
		Leases:  pglimit.Leases{On: s.Leases, TTL: s.LeaseTTL},
	}
	if s.Timeout < 0 {
		return l, "timeout", fmt.Errorf("is %v: it must be positive", s.Timeout)
	}
	if s.Block != nil {
		l.Config.Block = pglimit.Block(*s.Block)
		if blocked := (*pglimit.BlockError)(nil); errors.As(l.Config.Block.Validate(), &blocked) {
			return l, "block " + strings.ToLower(blocked.Field), errors.New(inFileOfBlock.Replace(blocked.Why))
		}
	}
	if s.Durability != "" {
		if l.Config.Durability, err = pglimit.ParseDurability(s.Durability); err != nil {
			return l, "durability", err
		}
	}
	if s.NewKeys != "" {
		if l.Config.NewKeys.Limit, err = pglimit.ParseLimit(s.NewKeys); err != nil {
			return l, "new_keys", err
		}
	}
	if field, err := s.fallback(&l.Config); err != nil {
		return l, field, err
	}
	if err := l.Config.Validate(l.Strategy); err != nil {
		field, err = inFile(err)
		return l, field, err
	}
	return l, "", nil
}

// inFileOfBlock explains an invalid block with the names of the file.
var inFileOfBlock = strings.NewReplacer(
	"is 0s: ", "is missing, or 0: ", "is 0: ", "is missing, or 0: ", "from For,", "from for,")

// fallback sets what the limiter answers when no decision is known.
func (s settings) fallback(c *pglimit.Config) (field string, err error) {
	if s.OnError != "local" && s.Instances != 0 {
		return "instances", errors.New("goes with on_error: local only")
	}
	switch s.OnError {
	case "", "error":
	case "open":
		c.OnError = pglimit.FailOpen
	case "closed":
		c.OnError = pglimit.FailClosed
	case "local":
		if s.Instances < 1 {
			return "instances", fmt.Errorf("is %d: on_error: local needs the number of instances of pglimit serve "+
				"that share the limit, at least 1", s.Instances)
		}
		c.OnError = pglimit.FailLocal(s.Instances)
	default:
		return "on_error", fmt.Errorf("is %q: it must be error, open, closed or local", s.OnError)
	}
	return "", nil
}

// inFile names the field of the file for that of a Config.
func inFile(err error) (field string, why error) {
	var config *pglimit.ConfigError
	if !errors.As(err, &config) {
		return "", err
	}
	field, known := map[string]string{
		"Name": "the name", "Limit": "limit", "Timeout": "timeout", "Durability": "durability", "IDTTL": "id_ttl",
		"Block": "block", "MaxWaiting": "max_waiting", "Combine.Lanes": "lanes", "Memory.TTL": "memory_ttl",
		"Leases.On": "leases", "Leases.TTL": "lease_ttl", "NewKeys.Limit": "new_keys",
	}[config.Field]
	if !known {
		return "", err
	}
	return field, config.Err
}

// named is the error's text with the field first.
func named(field string, err error) string {
	text := bare(err)
	if strings.HasPrefix(text, field) {
		return text
	}
	return field + " " + text
}

// bare is the error's text without the names of our packages and types.
func bare(err error) string {
	var limit *pglimit.LimitError
	var blocked *pglimit.BlockError
	switch {
	case errors.As(err, &limit):
		return strings.ToLower(limit.Field) + " " + limit.Why
	case errors.As(err, &blocked):
		return strings.ToLower(blocked.Field) + " " + blocked.Why
	}
	return strings.NewReplacer("pglimit: ", "", "strategies: ", "", ": use a Leaser, such as strategies.TokenBucket{}",
		": only token_bucket can",
		" (use strategies.TokenBucket{}): unsupported operation", ": only token_bucket can",
		": unsupported operation", "", "Config.Block", "block", "Config.NewKeys", "new_keys").Replace(err.Error())
}
