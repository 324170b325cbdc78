package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/semaphore"
)

func cliChangesLimits(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	c.run(t, "limits", "list").exits(t, 0).prints(t, "LIMITER")
	c.run(t, "limits", "set", "api", "--limit", "100/1m", "--note", "the default", "--by", "ann").exits(t, 0).
		prints(t, "set api *: enforce 100/1m (the default)\n", "replaced nothing")
	c.run(t, "limits", "set", "api", "user:42", "--limit", "5/1m", "--note", "ticket 7", "--by", "bob", "--expires", "1h").exits(t, 0).
		prints(t, "set api user:42: enforce 5/1m, until 20", "replaced nothing")
	c.run(t, "limits", "set", "api", "--prefix", "bot:", "--action", "deny", "--note", "scraping").exits(t, 0)
	c.run(t, "limits", "set", "api", "--action", "observe", "--limit", "60/1m", "--note", "enough?").exits(t, 0)
	if left := query[float64](t, pool, "select extract(epoch from expires_at - clock_timestamp())::float8 from pglimit.limits where key = 'user:42'"); left < 3000 || left > 3600 {
		t.Errorf("it expires in %v s, not in an hour", left)
	}

	// A rule that expires lies over the permanent one.
	over := []string{"limits", "set", "api", "user:42", "--limit", "2/1m", "--note", "its plan", "--by", "ann"}
	for _, command := range [][]string{append(over, "--dry-run"), over} {
		c.run(t, command...).exits(t, 0).prints(t, "api user:42: enforce 2/1m (its plan)\n", "\nover it: api user:42: enforce 5/1m, until 20", "(ticket 7; by bob")
	}
	c.run(t, "limits", "list", "api").exits(t, 0).prints(t, "user:42  enforce  5/1m              until", "user:42  enforce  2/1m              on ")
	c.run(t, "limits", "explain", "api", "user:42").exits(t, 0).prints(t, "enforce 2/1m                             overruled", "is under api user:42: enforce 5/1m, until")
	c.run(t, "limits", "delete", "api", "user:42", "--note", "at once").exits(t, 0).prints(t, "deleted api user:42: enforce 5/1m, until", "\nunder it: api user:42: enforce 2/1m (its plan; by ann")
	c.run(t, "limits", "set", "api", "user:42", "--limit", "5/1m", "--note", "ticket 7", "--by", "bob", "--expires", "1h").exits(t, 0).
		prints(t, "replaced nothing", "\nunder it: api user:42: enforce 2/1m (its plan; by ann")

	// What it replaces, and before that how many buckets it would be for.
	c.run(t, "allow", "user:42", "--limiter", "api", "--limit", "5/1m").exits(t, 0)
	c.run(t, "allow", "me", "--limiter", "api", "--limit", "5/1m").exits(t, 0)
	slower := []string{"limits", "set", "api", "--limit", "50/1m", "--max-wait", "50%", "--note", "load", "--by", "cat"}
	c.run(t, append(slower, "--dry-run")...).exits(t, 0).prints(t, "dry run, nothing was changed", "\nreplaced api *: enforce 100/1m (the default; by ann, 20", "would hold for 1 known bucket\n")
	c.run(t, slower...).exits(t, 0).prints(t, "set api *: enforce 50/1m, wait up to 50% (load)\n", "replaced api *: enforce 100/1m (the default; by ann, 20")
	c.run(t, append(slower, "--dry-run")...).exits(t, 0).prints(t, "it is so already")
	var set struct {
		Before, After map[string]any
	}
	must(t, json.Unmarshal([]byte(c.run(t, append(slower, "--output", "json")...).exits(t, 0).stdout), &set))
	if set.Before["changed_by"] != "cat" || set.After["limit_text"] != "50/1m" || set.After["max_wait"] != "50%" {
		t.Errorf("%+v", set)
	}

	c.run(t, "limits", "list", "api").exits(t, 0).prints(t, "user:42  enforce  5/1m", "bot:*    deny", "scraping", "observe")
	c.run(t, "limits", "list", "web").exits(t, 0).prints(t, "LIMITER")
	c.run(t, "limits", "explain", "api", "user:42").exits(t, 0).prints(t,
		"api user:42 is under api user:42: enforce 5/1m, until", "ticket 7; by bob", "4 of 5 left", "overruled", "observed: api *: observe 60/1m")
	c.run(t, "limits", "explain", "web", "user:42").exits(t, 0).prints(t, "web user:42 is under no rule: the limit in the service's configuration holds")
	c.run(t, "limits", "explain", "api", "user:42", "--output", "json").exits(t, 0).prints(t, `"state":"holds"`, `"remaining":4`)
	c.run(t, "limits", "history", "api", "user:42", "--last", "1").exits(t, 0).prints(t, "cat", " api      *     enforce 50/1m, wait", "load")
	c.run(t, "limits", "history", "api", "user:42").exits(t, 0).prints(t, " api      user:42  none -> enforce 5/1m")
	c.run(t, "limits", "history", "api", "bot:1").exits(t, 0).prints(t, "none -> deny", "scraping", "enforce 100/1m -> enforce 50/1m, wait up to 50%")
	c.run(t, "limits", "history", "web").exits(t, 0).prints(t, "AT ")

	c.run(t, "limits", "disable", "api", "--prefix", "bot:", "--note", "pause").exits(t, 0).prints(t, "disabled api bot:*: deny, disabled (pause)\nit was api bot:*: deny (scraping; by ")
	c.run(t, "limits", "disable", "api", "--prefix", "bot:", "--note", "twice").exits(t, 0).prints(t, "nothing changed\nit is so already: api bot:*: deny, disabled (pause; by ")
	if n := query[int64](t, pool, "select count(*) from pglimit.limits_history where note = 'twice'"); n != 0 {
		t.Errorf("recorded %d times", n)
	}
	c.run(t, "limits", "explain", "api", "bot:1").exits(t, 0).prints(t, "disabled", "api bot:1 is under api *: enforce 50/1m")
	c.run(t, "limits", "enable", "api", "--prefix", "bot:", "--note", "again").exits(t, 0).prints(t, "enabled api bot:*: deny (again)\nit was api bot:*: deny, disabled (pause; by ")
	c.run(t, "limits", "enable", "api", "--prefix", "bit:", "--note", "again").fails(t, "there is no live rule for api bit:*")
	c.run(t, "limits", "off", "api", "--note", "outage", "--dry-run").exits(t, 0).prints(t, "dry run, nothing was changed; otherwise:\nset api *: off (outage)", "replaced nothing", "would hold for 2 known buckets")
	c.run(t, "limits", "off", "--all", "--note", "outage", "--dry-run", "--expires", "1h").exits(t, 0).prints(t, "dry run, nothing was changed; otherwise:\nset * *: off, until 20", "would hold for 2 known buckets")
	c.run(t, "limits", "explain", "api", "bot:1").exits(t, 0).prints(t, "api bot:1 is under api bot:*: deny")
	c.run(t, "limits", "off", "api", "--note", "outage").exits(t, 0).prints(t, "set api *: off (outage)")
	c.run(t, "limits", "off", "--all", "--note", "outage", "--expires", "1h").exits(t, 0).prints(t, "set * *: off, until 20")
	c.run(t, "limits", "explain", "api", "bot:1").exits(t, 0).prints(t, "api bot:1 is under * *: off")
	c.run(t, "limits", "on", "--all", "--note", "over").exits(t, 0)
	c.run(t, "limits", "explain", "api", "bot:1").exits(t, 0).prints(t, "api bot:1 is under api *: off")
	c.run(t, "limits", "on", "api", "--note", "over").exits(t, 0)
	c.run(t, "limits", "on", "api", "--note", "over").fails(t, "was not switched off")
	c.run(t, "limits", "explain", "api", "bot:1").exits(t, 0).prints(t, "api bot:1 is under api bot:*: deny (again")
	c.run(t, "limits", "delete", "api", "--kind", "observe", "--note", "it is").exits(t, 0).prints(t, "deleted api *: observe 60/1m")
	c.run(t, "limits", "delete", "api", "--kind", "observe", "--note", "it is").fails(t, "there is no observe rule for api *")

	// Who follows.
	const nobody = "warning: no live instance follows: a service does with Config.Limits, and so do \"pglimit serve\" and pglimit.allow in SQL"
	c.run(t, "limits", "set", "login", "--limit", "5/1m", "--note", "n").exits(t, 0).prints(t, nobody+"\n")
	c.run(t, "limits", "explain", "login", "k").exits(t, 0).prints(t, "login k is under login *: enforce 5/1m", nobody+"\n")
	c.run(t, "limits", "off", "logni", "--note", "n", "--dry-run").exits(t, 0).prints(t, nobody+"\n")
	live := "insert into pglimit.instances select l, i::text, false, 0, 0, 0, pglimit.clock_ns() + 600000000000 from unnest($1::text[]) with ordinality u (l, i)"
	execute(t, pool, live, []string{"api", "api", "login"})
	c.run(t, "limits", "off", "apii", "--note", "n").exits(t, 0).prints(t, nobody+"; did you mean api?\n")
	c.run(t, "limits", "set", "api", "k", "--limit", "5/1m", "--note", "n", "--dry-run").exits(t, 0).prints(t, "2 live instances follow\n")
	c.run(t, "limits", "explain", "login", "k").exits(t, 0).prints(t, "1 live instance follows\n")
	execute(t, pool, "insert into pglimit.instances values ('(table)', 's', false, 0, 0, 0, pglimit.clock_ns() + 600000000000)")
	c.run(t, "limits", "explain", "apii", "k").exits(t, 0).prints(t, "no live instance has this name; 1 pglimit serve follows if asked for it; did you mean api?\n")
	c.run(t, "limits", "explain", "apii", "k", "--output", "json").exits(t, 0).prints(t, `"followers":{"instances":0,"servers":1,"near":"api"}`)
	c.run(t, "limits", "set", "api", "k", "--limit", "5/1m", "--note", "n", "--output", "json").exits(t, 0).prints(t, `"followers":{"instances":2,"servers":1}`)
	if out := c.run(t, "limits", "set", "apii", "--action", "places", "--limit", "5", "--note", "n").exits(t, 0).stdout; strings.Contains(out, "follow") {
		t.Errorf("a semaphore: %s", out)
	}
}

// Without --limit, peek looks by the rule that decides, with any strategy, and says so if there is none with a limit.
func cliPeeksByTheRule(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	for _, rule := range [][]string{
		{"--limit", "10/day"}, {"user:42", "--limit", "5/day burst 3"}, {"user:42", "--action", "observe", "--limit", "7/day"}, {"user:42", "--action", "places", "--limit", "1"},
		{"--prefix", "bot:", "--action", "deny"}, {"--prefix", "vip:", "--limit", "500/month", "--expires", "1h"},
	} {
		c.run(t, append([]string{"limits", "set", "api", "--note", "why"}, rule...)...).exits(t, 0)
	}
	for _, strategy := range []string{"token_bucket", "upsert"} {
		c.run(t, "allow", "user:42", "--limiter", "api", "--limit", "5/day", "--strategy", strategy).exits(t, 0)
		c.run(t, "peek", "user:42", "--limiter", "api", "--strategy", strategy).exits(t, 0).prints(t, "2 of 3 left, full again in ")
	}
	c.run(t, "peek", "user:42", "--limiter", "api", "--limit", "5/day").exits(t, 0).prints(t, "4 of 5 left")
	c.run(t, "peek", "user:43", "--limiter", "api", "--output", "json").exits(t, 0).prints(t, `"remaining":10,`, `"limit":"10/24h"`)
	c.run(t, "peek", "vip:1", "--limiter", "api").exits(t, 0).prints(t, "500 of 500 left")
	c.run(t, "peek", "bot:1", "--limiter", "api").fails(t, "no limit applies to the key", "api bot:*: deny (why; by ")
	c.run(t, "peek", "k", "--limiter", "web").fails(t, "pglimit.limits has none for limiter web and key k: give the service's limit")
	c.run(t, "limits", "off", "--all", "--note", "outage").exits(t, 0)
	c.run(t, "peek", "user:42", "--limiter", "api").fails(t, "* *: off (outage; by ")
}

func cliSetsPlaces(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{FromTable: true}) // its name is test
	set := []string{"limits", "set", "test", "--action", "places", "--limit", "2", "--note", "default", "--by", "ann"}
	c.run(t, set...).exits(t, 0).prints(t, "set test *: places 2 (default)\n", "replaced nothing")
	acquire(t, s, "tenant:42")
	acquire(t, s, "tenant:42")
	c.run(t, append(set, "--dry-run")...).exits(t, 0).prints(t, "it is so already", "would hold for 1 known bucket\n")
	c.run(t, "limits", "set", "test", "--prefix", "tenant:", "--action", "places", "--limit", "1", "--note", "load", "--expires", "1h").exits(t, 0)
	c.run(t, "limits", "explain", "test", "tenant:42").exits(t, 0).prints(t, "holds", "overruled", "\n\nsemaphore: test tenant:*: places 1, until ", "2 of 1 places are held\n")
	c.run(t, "limits", "explain", "test", "tenant:42", "--output", "json").exits(t, 0).prints(t, `"held":2`, `"state":"overruled"`)
	full(t, s, "tenant:42")
	c.run(t, "limits", "list", "test").exits(t, 0).prints(t, "*         places  2 ", "tenant:*  places  1 ")
	c.run(t, "limits", "disable", "test", "--prefix", "tenant:", "--kind", "places", "--note", "enough").exits(t, 0).prints(t, "disabled test tenant:*: places 1")
	c.run(t, "limits", "history", "test", "tenant:42").exits(t, 0).prints(t, "none -> places 1")
	c.run(t, "limits", "set", "test", "--action", "places", "--limit=5/1m", "--note", "why").fails(t, "that is no rule: the number of places is a whole number such as 5, from 1 to 1000000000000000")
	c.run(t, "limits", "set", "test", "--action", "places", "--note", "why").fails(t, "places needs a --limit, such as --limit 5")

	file := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(file, []byte("limits: [{limiter: imports, action: places, limit: 5, note: default}, {limiter: imports, limit: 5/s, note: rate}]"), 0o600))
	c.run(t, "limits", "import", file, "--prune", "--note", "all").exits(t, 0).prints(t, "+ imports *: places 5 (default")
	exported := c.run(t, "limits", "export").exits(t, 0).stdout
	must(t, os.WriteFile(file, []byte(exported), 0o600))
	c.run(t, "limits", "import", file, "--prune", "--note", "all").exits(t, 0).prints(t, "0 changed, 2 as they were")

	// pglimit run
	c.run(t, "limits", "set", "cli", "--prefix", "import:", "--action", "places", "--limit", "2", "--note", "two").exits(t, 0)
	nested := []string{"run", "--key", "import:42", "--from-table", "--", c.binary}
	c.run(t, append(nested, append(nested, "--version")...)...).exits(t, 0)
	c.run(t, append(nested, append(nested, append(nested, "--version")...)...)...).exits(t, 75)
	nested[2] = "none" // no rule is for it
	c.run(t, append(nested, "--version")...).exits(t, 0)
	c.run(t, append(nested, append(nested, "--version")...)...).exits(t, 75)
}

func cliImportsLimits(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	dir := t.TempDir()
	file := func(text string) string {
		name := filepath.Join(dir, "limits.yaml")
		must(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	first := file(`
limits:
  - {limiter: api, limit: 100/1m burst 20, max_wait: 50%, note: default}
  - {limiter: api, key: 42, action: allow, note: "ours: \"all\""}
  - {limiter: api, prefix: "bot:", action: deny, expires_at: 2100-01-01T00:00:00Z, note: scraping}
  - {limiter: api, action: observe, limit: 60/1m, disabled: true, note: "enough?"}
  - {action: off, disabled: true, note: for a bad day}
`)
	c.run(t, "limits", "import", first, "--dry-run").exits(t, 0).prints(t, "+ api 42: allow", "dry run, nothing was changed: 5 changed, 0 as they were")
	c.run(t, "limits", "list").exits(t, 0).prints(t, "LIMITER")
	c.run(t, "limits", "import", first, "--by", "ann").exits(t, 0).prints(t, "+ api bot:*: deny, until 2100-01-01 00:00:00 (scraping; by ann", "5 changed, 0 as they were")
	c.run(t, "limits", "import", first).exits(t, 0).prints(t, "0 changed, 5 as they were")

	// What is exported is imported, into another database too.
	exported := c.run(t, "limits", "export").exits(t, 0).stdout
	c.run(t, "limits", "import", file(exported), "--prune", "--note", "again").exits(t, 0).prints(t, "0 changed, 5 as they were")
	other, _ := c.onMigrated(t)
	other.run(t, "limits", "import", file(exported)).exits(t, 0).prints(t, "5 changed")
	if again := other.run(t, "limits", "export").exits(t, 0).stdout; again != exported {
		t.Errorf("exported\n%s\nand after the import\n%s", exported, again)
	}

	second := file("limits:\n  - {limiter: api, limit: 50/1m, note: less}\n  - {limiter: web, limit: 1/s}\n")
	c.run(t, "limits", "import", second, "--prune").fails(t, "import --prune needs --note")
	c.run(t, "limits", "import", second).fails(t, "rule 2 (web): note is empty")
	c.run(t, "limits", "import", second, "--note", "release").exits(t, 0).prints(t,
		"- api *: enforce 100/1m burst 20", "+ api *: enforce 50/1m (less; by", "+ web *: enforce 1/s (release; by", "2 changed, 0 as they were")
	c.run(t, "limits", "import", second, "--note", "release", "--prune").exits(t, 0).prints(t, "- api 42: allow", "4 changed, 2 as they were")
	if left := texts(t, pool, "select concat_ws(' ', limiter, key, prefix, limit_text) from pglimit.limits order by 1"); len(left) != 2 {
		t.Errorf("left: %q", left)
	}

	// A rule that has expired is not set, but one that expired in the table is left alone.
	over := file("limits: [{limiter: web, key: k, action: deny, expires_at: 2000-01-01T00:00:00Z, note: why}]")
	c.run(t, "limits", "import", over).fails(t, "rule 1 (web k): expires_at is ", ": that has passed")
	execute(t, pool, "insert into pglimit.limits (limiter, key, action, expires_at, note) values ('web', 'k', 'deny', '2000-01-01 00:00+00', 'why')")
	c.run(t, "limits", "import", over).exits(t, 0).prints(t, "0 changed, 1 as they were")
	if exported := c.run(t, "limits", "export").exits(t, 0).stdout; strings.Contains(exported, "2000") || !strings.Contains(exported, "limiter: web") {
		t.Errorf("exported:\n%s", exported)
	}
	execute(t, pool, "delete from pglimit.limits where key = 'k'")

	before := query[int64](t, pool, "select count(*) from pglimit.limits_history")
	for text, want := range map[string]string{
		"":                                 "there are no limits in it",
		"limit: []":                        "there is no field limit here",
		"limits: {a: b}":                   "a list of rules",
		"limits: [{limiter: api, kye: a}]": "line 1: there is no field kye here",
		"limits:\n  - {limiter: api, ~: user:42, action: deny, note: why}":                                                                 "line 2: a name is missing here",
		"limits: [{limiter: api, key: '', action: deny, note: why}]":                                                                       "rule 1: key is empty",
		"limits: [{limiter: api, prefix: , action: deny, note: why}]":                                                                      "rule 1: prefix is empty",
		"limits: [{limiter: api, action: ban, note: why}]":                                                                                 `line 1: the action is "ban"`,
		"limits:\n  - {limiter: a, action: deny, note: why}\n  - limiter: b\n    action: [ban]\n  - {limiter: c, action: Deny, note: why}": `line 4: the action is "": it must be one of ["enforce" "observe" "allow" "deny" "off" "places"]; line 5: the action is "Deny"`,
		"limits: [{limiter: api, limit: 1/s, note: why}, {limiter: web, key: k, note: why}]":                                               "rule 2 (web k): the actions enforce and observe need a limit",
		"limits: [{limiter: api, limit: 1/s, note: why}, {limiter: api, limit: 2/s, note: why}]":                                           "rules 1 and 2 are for the same keys",
		"limits: [{limiter: new, limit: 1/s, note: why}]\n---\nlimits: [{limiter: api, limit: 2/s, note: why}]\n":                          "more than one YAML document",
	} {
		c.run(t, "limits", "import", file(text), "--prune", "--note", "why").fails(t, want)
	}
	if after := query[int64](t, pool, "select count(*) from pglimit.limits_history"); after != before {
		t.Errorf("%d changes were made", after-before)
	}
	c.run(t, "limits", "import", filepath.Join(dir, "none.yaml")).fails(t, "none.yaml")
	c.run(t, "limits", "import", file("limits: []"), "--prune", "--note", "none").exits(t, 0).prints(t, "2 changed, 0 as they were")
}

func cliRefusesWrongLimits(t *testing.T, c cli) {
	unmigrated, _ := c.on(t)
	unmigrated.run(t, "limits", "list").fails(t, `run "pglimit migrate up"`)
	c, pool := c.onMigrated(t)
	limit := []string{"--limit", "5/s", "--note", "why"}
	for want, args := range map[string][]string{
		"set needs --note WHY":                      {"set", "api", "--limit", "5/s"},
		"disable needs --note WHY":                  {"disable", "api", "--note", " "},
		"set needs a LIMITER":                       append([]string{"set"}, limit...),
		"the LIMITER is empty":                      append([]string{"set", ""}, limit...),
		"the KEY is empty":                          append([]string{"set", "api", ""}, limit...),
		"--prefix is empty":                         append([]string{"set", "api", "--prefix", ""}, limit...),
		"a KEY or a --prefix, not both":             append([]string{"set", "api", "k", "--prefix", "p"}, limit...),
		"quote a key that has spaces":               append([]string{"set", "api", "my", "key"}, limit...),
		"enforce needs a --limit":                   {"set", "api", "--note", "why"},
		"deny takes no --limit":                     append([]string{"set", "api", "--action", "deny"}, limit...),
		"--action is \"off\": it":                   {"set", "api", "--action", "off", "--note", "why"},
		"--expires is \"soon\"":                     append([]string{"set", "api", "--expires", "soon"}, limit...),
		"that has passed":                           append([]string{"set", "api", "--expires", "2020-01-01T00:00:00Z"}, limit...),
		"that is no rule: limit \"5/y\"":            {"set", "api", "--limit", "5/y", "--note", "why"},
		"that is no rule: the longest wait":         append([]string{"set", "api", "--max-wait", "0%"}, limit...),
		"off needs a LIMITER":                       {"off", "--note", "why"},
		"off takes a LIMITER or --all, not both":    {"off", "api", "--all", "--note", "why"},
		"on takes [LIMITER], not 2 arguments":       {"on", "api", "k", "--note", "why"},
		"say which: pglimit limits list|explain":    {},
		"explain needs a KEY":                       {"explain", "api"},
		"--last is 0":                               {"history", "--last", "0"},
		"import needs a FILE":                       {"import"},
		"unknown flag: --dry":                       append([]string{"set", "api", "--dry"}, limit...),
		"--timeout is -1s: it must not be negative": {"list", "--timeout", "-1s"},
	} {
		c.run(t, append([]string{"limits"}, args...)...).fails(t, want)
	}

	// Who has a transaction open that changes limits holds up all others.
	tx := begin(t, pool)
	execute(t, tx, "delete from pglimit.limits")
	c.run(t, append([]string{"limits", "set", "api", "--timeout", "8s"}, limit...)...).fails(t, "no answer within --timeout 8s", "a transaction that changes limits is open")
	c.run(t, "limits", "list").exits(t, 0)
	must(t, tx.Rollback(t.Context()))

	// The role of a service cannot change limits. (What one for operators can is TestGrantsAreEnoughAndNoMore.)
	role := newRole(t, databaseURL(pool))
	execute(t, pool, c.run(t, "migrate", "grants", role).exits(t, 0).stdout)
	c.env = []string{"DATABASE_URL=" + with(databaseURL(pool), "role", role)}
	c.run(t, append([]string{"limits", "set", "api"}, limit...)...).fails(t, `"pglimit migrate grants ROLE --for limits"`)
	c.run(t, "limits", "explain", "api", "k").exits(t, 0)
}
