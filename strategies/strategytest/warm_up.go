package strategytest

import (
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
)

// warmingUp is the table of a strategy whose keys grant a burst when they are free, at a price that falls while they are in use.
func warmingUp(rule warmup.Rule) Table {
	// The cost of the first tokens of a cold key.
	cold := func(limit rate.Limit, n int64) time.Duration {
		return time.Duration(warmup.State{}.Take(rule, limit, 0, n).FreeNS)
	}
	one, five := rate.Every(10*ms), rate.Every(5*ms).WithBurst(5)
	return Table{
		Rule:  rule,
		Whole: true,
		Check: func(limit rate.Limit, events []audit.Event) audit.Report {
			return audit.CheckBy(rule, limit, events)
		},
		Rows: []Row{
			{"ABurstAtOnce", []Part{{slow(5), []Step{{now, 5, 5, 5, 0}, {now, 1, 1, 0, 0}, {now, 5, 1, 0, 0}}}}},
			{"APartOfABurst", []Part{{slow(5), []Step{{now, 2, 2, 2, 0}, {now, 1, 1, 0, 0}}}}},
			{"UnitsOfABurst", []Part{{slow(7), []Step{{now, 10, 2, 6, 0}, {now, 10, 2, 0, 0}, {now, 10, 1, 0, 0}}}}},
			{"UnitsThatAreAskedFor", []Part{{slow(7), []Step{{now, 5, 2, 4, 0}}}}},
			{"APeekForABurst", []Part{{slow(5), []Step{{now, 0, 5, 0, 5}, {now, 2, 2, 2, 0}, {now, 0, 1, 0, 0}}}}},

			{"ThePriceOfACold", []Part{{one, []Step{{now, 1, 1, 1, 0}, {cold(one, 1), 1, 1, 1, 0}}}}},
			{"ThePriceOfSeveral", []Part{{five, []Step{{now, 3, 3, 3, 0}, {cold(five, 3), 0, 5, 0, 5}}}}},
			{"OneAfterAnother", []Part{{rate.Every(2 * ms), slices.Repeat([]Step{{eventually, 1, 1, 1, 0}}, 8)}}},

			{"WhatWasGrantedIsPaidForUnderItsLimit", []Part{{slow(10), []Step{{now, 1, 1, 1, 0}}}, {rate.Every(ms), []Step{{now, 1, 1, 0, 0}}}}},
			{"ASlowerLimitPaysLater", []Part{{one, []Step{{now, 1, 1, 1, 0}}}, {slow(5), []Step{{cold(one, 1), 5, 5, 5, 0}, {now, 1, 1, 0, 0}}}}},
		},
	}
}
