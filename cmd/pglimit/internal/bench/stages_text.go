package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// stagesText says which stages were wanted, and which of their settings are not the
// library's default: "combining (8 lanes), memory of denials, no leases".
func (c Config) stagesText() string {
	return strings.Join([]string{
		stageText(!c.NoCombining, "combining", c.Lanes > 0, plural(c.Lanes, "lane"), c.MaxWaiting > 0, "at most "+count(int64(c.MaxWaiting))+" waiting"),
		stageText(!c.NoMemory, "memory of denials", c.DenialTTL > 0, c.DenialTTL.String(), c.DenialKeys > 0, plural(c.DenialKeys, "key")),
		stageText(c.Leases, "leases", c.LeaseTTL > 0, c.LeaseTTL.String(), false, ""),
	}, ", ")
}

// stageText names a stage and up to two settings, each if it was set.
func stageText(on bool, name string, firstSet bool, first string, secondSet bool, second string) string {
	if !on {
		return "no " + name
	}
	var set []string
	if firstSet {
		set = append(set, first)
	}
	if secondSet {
		set = append(set, second)
	}
	if len(set) == 0 {
		return name
	}
	return name + " (" + strings.Join(set, ", ") + ")"
}

// stageRows say what each stage did. They leave out the rows of a stage that no run had.
func (r Report) stageRows() []row {
	stage := func(name string, there func(Stages) bool, cell func(Stages) string) []row {
		for _, run := range r.Runs {
			if there(run.Stages) {
				return []row{{name, func(run Result) string {
					if !there(run.Stages) {
						return "-"
					}
					return cell(run.Stages)
				}}}
			}
		}
		return nil
	}
	combining := func(s Stages) bool { return s.Combining }
	leases := func(s Stages) bool { return s.Leases }
	leavers := func(s Stages) bool { return s.PassedOnTokens+s.GivenBack+s.LostTokens > 0 }

	rows := []row{{"round trips/decision", func(run Result) string { return small(run.Stages.TripsPerDecision()) }}}
	for _, some := range [][]row{
		stage("from memory", func(s Stages) bool { return s.Memory }, func(s Stages) string { return percent(s.RememberedShare()) }),
		stage("from leases", leases, func(s Stages) string { return percent(s.LeasedShare()) }),
		stage("trips for leases", leases, func(s Stages) string { return count(s.LeaseTrips) }),
		stage("leased tokens unspent", leases, func(s Stages) string { return percent(ratio(s.UnspentTokens, s.LeasedTokens)) }),
		stage("callers/round trip", combining, func(s Stages) string { return number(s.CallersPerTrip()) }),
		stage("requests/round trip", combining, func(s Stages) string { return number(s.RequestsPerTrip()) }),
		stage("tokens of leavers passed on", leavers, func(s Stages) string { return count(s.PassedOnTokens) }),
		stage("given back", leavers, func(s Stages) string { return count(s.GivenBack) }),
		stage("lost", leavers, func(s Stages) string { return count(s.LostTokens) }),
	} {
		rows = append(rows, some...)
	}
	return rows
}

// small writes three significant digits, wherever they begin: 0.0000996.
func small(f float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 3, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// percent writes a share, as fine as that of many decisions has to be: 99.97 %. Only all
// of them is 100 %.
func percent(share float64) string {
	if text := fmt.Sprintf("%.2f", 100*share); share >= 1 || text != "100.00" {
		return strings.TrimSuffix(text, ".00") + " %"
	}
	return "99.99 %"
}
