package main

import (
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
)

// What export writes import reads, for every key that the table takes.
func TestImportReadsWhatExportWrites(t *testing.T) {
	t.Parallel()
	odd := rapid.SampledFrom([]rune{'\x01', '\t', '\n', '\r', ' ', '"', '\'', '\\', '/', ':', '#', '-', '&', '*', '!', '%', '@', '`', '~', '{', '[', ',', '\x1b', '\x7f', '\u0085', '\u009f', '\u00a0', '\u2028', '\u2029', '\ufeff', '\ufffd', '\ufffe', '\uffff', '\U0001f600', '\U0010ffff', '0', 'n', 'u'})
	text := rapid.OneOf(rapid.StringOfN(rapid.OneOf(odd, odd, rapid.Rune()), 1, 9, 1024), rapid.SampledFrom([]string{"null", "~", "1e3", "2001-01-01", "0x1f", "yes", "<<", "=", "---", "...", "- a", "a: b", strings.Repeat("k ", 512)})).
		Filter(func(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) })
	rapid.Check(t, func(t *rapid.T) {
		rule := limits.Rule{Limiter: text.Draw(t, "limiter"), Key: text.Draw(t, "key"), Action: pglimit.ActionDeny, Note: text.Draw(t, "note"), Expires: time.Date(2261, 1, 2, 3, 4, 5, 678901000, time.UTC)}
		if rapid.Bool().Draw(t, "prefix") {
			rule.Key, rule.Prefix = "", rule.Key
		}
		file := rulesFile{Limits: []limitRule{newLimitRule(&rule)}}
		yaml, err := file.yaml()
		if err != nil {
			t.Fatal(err)
		}
		rules, err := parseRules(yaml)
		if err != nil || !reflect.DeepEqual(rules, []limits.Rule{rule}) {
			t.Fatalf("%q\nis read %+v, %v", yaml, rules, err)
		}
	})
}

func TestImportRefusesHalfACharacter(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"limits": [{"limiter": "\ud83d", "note": "n"}]}`, "{\"limits\": [{\"limiter\": \"\xff\", \"note\": \"n\"}]}"} {
		if rules, err := parseRules([]byte(text)); err == nil {
			t.Errorf("%q is read %+v", text, rules)
		}
	}
}
