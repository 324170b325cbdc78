package functions

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// DistributedPath is the place in the folder migrations of the functions of distributed tables.
const DistributedPath = "distributed.sql"

const distributedHead = `-- The functions that "pglimit distribute" puts in the place of those of one server, or beside them: the files of the folder
-- functions/citus, and functions with statements in which Citus refuses something that is changed here. Generated: do not
-- edit, change the files and run "go generate ./migrations".
`

// What Citus refuses in a statement on distributed tables, or does otherwise, and what stands there instead.
var onNodes = [...]struct {
	refused *regexp.Regexp
	instead func(match []string) string
}{
	{ // Citus locks the table on all nodes. A write that finds nothing takes the same lock where it is sent.
		regexp.MustCompile(`lock table ([\w., ]+) in row exclusive mode`),
		func(match []string) string {
			var writes []string
			for table := range strings.SplitSeq(match[1], ", ") {
				writes = append(writes, "update "+table+" set limiter = limiter where false")
			}
			return strings.Join(writes, "; ")
		},
	},
	{ // a volatile function
		regexp.MustCompile(`pglimit\.clock_ns\(\) - now_ns between -pglimit\.step_ns\(\) and pglimit\.late_ns\(\)`),
		func([]string) string { return "pglimit.is_now(now_ns, at_ns)" },
	},
	{ // The table of limits is on the coordinator.
		regexp.MustCompile(`pglimit\.limits_for\(_limiter, _key\)`),
		func([]string) string { return "pglimit.limits_at(_limiter, _key)" },
	},
	{ // A generic plan of Citus never finds the plan of its shard that it has kept.
		regexp.MustCompile(`(set search_path = '' set plan_cache_mode = )force_generic_plan as`),
		func(match []string) string { return match[1] + "force_custom_plan as" },
	},
	{ // Citus 13 crashes where a column of a domain is set to an element of an array.
		regexp.MustCompile(`(_ns = )(b\[\d\])`),
		func(match []string) string { return match[1] + match[2] + " + 0" },
	},
}

// GenerateDistributed returns the text of the functions of distributed tables, made of the folder functions in the
// folder migrations, and of its folder citus.
func GenerateDistributed(migrations string) (string, error) {
	plain, err := read(filepath.Join(migrations, "functions"))
	if err != nil {
		return "", err
	}
	all, err := read(filepath.Join(migrations, "functions", "citus"))
	if err != nil {
		return "", err
	}
	var applied [len(onNodes)]bool
	for name, text := range plain {
		if _, is := all[name]; is {
			continue
		}
		changed := text
		for i, rule := range onNodes {
			applied[i] = applied[i] || rule.refused.MatchString(changed)
			changed = rule.refused.ReplaceAllStringFunc(changed, func(found string) string {
				return rule.instead(rule.refused.FindStringSubmatch(found))
			})
		}
		if changed != text {
			_, code, _ := strings.Cut(changed, "\ncreate or replace ")
			all[name] = "-- See functions/" + name + ".sql.\ncreate or replace " + code
		}
	}
	if i := slices.Index(applied[:], false); i >= 0 { // the statement reads otherwise now, and Citus would refuse it
		return "", fmt.Errorf("no function has what is changed for Citus: %s", onNodes[i].refused)
	}
	objects, err := parse(all)
	texts := []string{distributedHead}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		texts = append(texts, objects[name].text)
	}
	return strings.Join(texts, "\n"), err
}
