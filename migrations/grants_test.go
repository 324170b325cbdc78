package migrations

import (
	"strings"
	"testing"
)

func TestRolesThatCannotBeOneAreRefused(t *testing.T) {
	t.Parallel()
	for role, why := range map[string]string{
		"":                      "is empty",
		"a\x00b":                "NUL",
		"\xff":                  "valid UTF-8",
		strings.Repeat("r", 64): "64 bytes",
		"public":                "is no role", // it would give everybody the rights
	} {
		if text, err := Grants(role, ToDecide); err == nil || !strings.Contains(err.Error(), why) || text != "" {
			t.Errorf("role %q: %v, %q", role, err, text)
		}
	}
	if _, err := Grants("app", "delete"); err == nil || !strings.Contains(err.Error(), `"decide-and-sweep"`) {
		t.Errorf("an unknown purpose: %v", err)
	}
}

func TestGrantsQuoteTheRoleAndLeaveOutWhatIsNotForIt(t *testing.T) {
	t.Parallel()
	for _, purpose := range Purposes() {
		all, err := Grants(`a"b; drop table x --`, purpose)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(all) {
			if strings.Contains(line, "drop table") && !strings.Contains(line, `"a""b; drop table x --";`) {
				t.Errorf("%s: the role is not quoted in %s", purpose, line)
			}
		}
		without, err := Grants("app", purpose, WithoutExclusionRange())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(all+without, "goose") {
			t.Errorf("%s: the version table is granted:\n%s", purpose, all)
		}
		if !strings.Contains(all, "pglimit.exclusion_range") || strings.Contains(without, "exclusion_range") || strings.Contains(without, "pglimit.ranges") {
			t.Errorf("%s: with exclusion_range\n%s\nwithout\n%s", purpose, all, without)
		}
	}
}
