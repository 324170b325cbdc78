package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

// limitRule is a rule in the YAML of import and export, without the fields that the database writes.
type limitRule struct {
	Limiter   yamlText   `yaml:"limiter,omitempty"` // none: all limiters
	Key       yamlText   `yaml:"key,omitempty"`
	Prefix    yamlText   `yaml:"prefix,omitempty"`
	Action    ruleAction `yaml:"action,omitempty"`
	Limit     yamlText   `yaml:"limit,omitempty"`
	MaxWait   yamlText   `yaml:"max_wait,omitempty"`
	Disabled  bool       `yaml:"disabled,omitempty"`
	ExpiresAt time.Time  `yaml:"expires_at,omitempty"`
	Note      yamlText   `yaml:"note,omitempty"`
}

// yamlText is quoted if it has line breaks or similar characters, some of which the encoder writes so that the decoder
// refuses them.
type yamlText string

// MarshalYAML quotes it.
func (t yamlText) MarshalYAML() (any, error) { //nolint:unparam // a yaml.Marshaler
	if strings.ContainsFunc(string(t), func(r rune) bool { return !unicode.IsPrint(r) }) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: string(t), Style: yaml.DoubleQuotedStyle}, nil
	}
	return string(t), nil
}

// ruleAction names its line if it is invalid.
type ruleAction struct{ pglimit.Action }

func (a *ruleAction) UnmarshalYAML(node *yaml.Node) error {
	if err := a.UnmarshalText([]byte(node.Value)); err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %v", node.Line, err)}}
	}
	return nil
}

func newLimitRule(r *limits.Rule) limitRule {
	return limitRule{yamlText(r.Limiter), yamlText(r.Key), yamlText(r.Prefix), ruleAction{r.Action}, yamlText(r.Limit),
		yamlText(r.MaxWait), r.Disabled, r.Expires, yamlText(r.Note)}
}

func (r *limitRule) rule() limits.Rule {
	return limits.Rule{
		Limiter: string(r.Limiter), Key: string(r.Key), Prefix: string(r.Prefix), Action: r.Action.Action,
		Limit: string(r.Limit), MaxWait: string(r.MaxWait), Disabled: r.Disabled, Expires: r.ExpiresAt,
		Note: string(r.Note),
	}
}

// followersOf counts the followers of a rule that is enabled and for limiters. text says how many they are, or why that
// is not known.
func followersOf(ctx context.Context, table *limits.Table, rule *limits.Rule) (f *limits.Followers, text string) {
	if rule == nil || rule.Disabled || rule.Action == pglimit.ActionPlaces {
		return nil, ""
	}
	found, err := table.Followers(ctx, rule.Limiter)
	if err != nil {
		return nil, fmt.Sprintf("it is not known who follows: %v\n", err)
	}
	mean := ""
	if found.Near != "" {
		mean = fmt.Sprintf("; did you mean %s?", word(found.Near))
	}
	switch n, servers := found.Instances, found.Servers; {
	case n > 0:
		text = plural(n+servers, "live instance follows", "live instances follow") + "\n"
	case servers > 0 && rule.Limiter == "":
		text = plural(servers, "pglimit serve follows", "pglimit serve follow") + "\n"
	case servers > 0:
		follow := plural(servers, "pglimit serve follows", "pglimit serve follow")
		text = fmt.Sprintf("no live instance has this name; %s if asked for it%s\n", follow, mean)
	default:
		text = fmt.Sprintf("warning: no live instance follows: a service does with Config.Limits, and so do "+
			"\"pglimit serve\" and pglimit.allow in SQL%s\n", mean)
	}
	return &found, text
}

func plural(n int64, one, more string) string {
	if n == 1 {
		more = one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// otherRule returns the temporary rule that covers this one, or the permanent one that it covers. Nil: there is none,
// or it is not known.
func otherRule(ctx context.Context, table *limits.Table, of *limits.Rule) *limits.Rule {
	rules, _ := table.List(ctx)
	for i := range rules {
		r := &rules[i]
		if ruleWho(r) == ruleWho(of) && r.Kind() == of.Kind() && r.Expires.IsZero() != of.Expires.IsZero() &&
			!r.Expired {
			return r
		}
	}
	return nil
}

// otherText says which rule covers the changed one, or is covered by it.
func otherText(other *limits.Rule) string {
	switch {
	case other == nil:
		return ""
	case other.Expires.IsZero():
		return "under it: " + ruleText(other) + "\n"
	}
	return "over it: " + ruleText(other) + "\n"
}

// ruleWho names the limiter and the keys of a rule: "api user:42", "api bot:*", "api *".
func ruleWho(r *limits.Rule) string { return ruleLimiter(r) + " " + ruleKeys(r) }

func ruleLimiter(r *limits.Rule) string {
	if r.Limiter == "" {
		return "*"
	}
	return word(r.Limiter)
}

func ruleKeys(r *limits.Rule) string {
	if r.Key != "" {
		return word(r.Key)
	}
	if r.Prefix != "" {
		return word(r.Prefix) + "*"
	}
	return "*"
}

// word returns the text, quoted if it could be misread.
func word(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool {
		return r == '*' || r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}) {
		return strconv.Quote(text)
	}
	return text
}

// ruleDoes says what a rule does: "enforce 5/s, wait up to 30s, until 2026-11-30 18:00:00".
func ruleDoes(r *limits.Rule) string {
	text := r.Action.String()
	if r.Limit != "" {
		text += " " + r.Limit
	}
	if r.MaxWait != "" {
		text += ", wait up to " + r.MaxWait
	}
	if !r.Expires.IsZero() {
		text += ", until " + r.Expires.UTC().Format(time.DateTime)
	}
	if r.Disabled {
		text += ", disabled"
	}
	return text
}

// ruleText describes a rule in one line, with its note and author.
func ruleText(r *limits.Rule) string {
	text := fmt.Sprintf("%s: %s (%s", ruleWho(r), ruleDoes(r), inLine(r.Note))
	if !r.At.IsZero() {
		text += "; by " + word(r.By) + ", " + r.At.Format(time.DateTime)
	}
	return text + ")"
}

// inLine returns a note without line breaks.
func inLine(note string) string { return strings.Join(strings.Fields(note), " ") }

func ruleState(r *limits.Rule) string {
	switch {
	case r.Disabled:
		return "disabled"
	case r.Expired:
		return "expired"
	case !r.Expires.IsZero():
		return "until " + r.Expires.Format(time.DateTime)
	}
	return "on"
}
