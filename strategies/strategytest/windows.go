package strategytest

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// slidingWindows is the table of strategies that never grant more than Limit.Burst in any Limit.Window.
func slidingWindows(rule window.Rule) Table {
	return Table{
		Rule: rule,
		Rows: windowRows,
		Check: func(limit rate.Limit, events []audit.Event) audit.Report {
			return audit.CheckBy(rule, limit, events)
		},
	}
}

func fivePer(period time.Duration) rate.Limit { return rate.Per(5, period) }

var windowRows = []Row{
	// A token bucket would grant one every 3 ms, and the weighted counter 199 within some 300 ms.
	{"AllOfAWindowComesBackWhenItIsOver", []Part{{rate.Per(100, 300*ms), []Step{{now, 100, 100, 100, 0}, {300 * ms, 1, 1, 1, 99}, {now, 99, 99, 99, some}}}}}, // and no more: Check
	{"OnePerPeriodIsTheWriteUpsRule", []Part{{rate.Every(20 * ms), []Step{{now, 1, 1, 1, 0}, {20 * ms, 1, 1, 1, 0}, {eventually, 1, 1, 1, 0}}}}},
	{"ANewWindowHasAllAtOnce", []Part{{fivePer(40 * ms), []Step{{now, 5, 5, 5, 0}, {40 * ms, 0, 5, 0, 5}, {now, 5, 5, 5, 0}}}}},

	{"ARaisedLimit", []Part{{slow(10), []Step{{now, 4, 4, 4, 6}}}, {slow(20), []Step{{now, 1, 1, 1, 15}}}}},
	{"ARaisedLimitTakesEffectAtOnce", []Part{{slow(10), []Step{{now, 10, 10, 10, 0}, {now, 1, 1, 0, 0}}}, {slow(1000), []Step{{now, 990, 1, 990, 0}, {now, 1, 1, 0, 0}}}}},
	{"ALoweredLimit", []Part{{slow(10), []Step{{now, 8, 8, 8, 2}}}, {slow(3), []Step{{now, 1, 1, 0, 0}}}, {slow(10), []Step{{now, 3, 1, 2, 0}}}}},
	{"AShorterWindow", []Part{{slow(5), []Step{{now, 5, 5, 5, 0}}}, {fivePer(50 * ms), []Step{{50 * ms, 5, 5, 5, 0}}}}},
	{"ALongerWindow", []Part{{fivePer(50 * ms), []Step{{now, 5, 5, 5, 0}}}, {slow(5), []Step{{50 * ms, 5, 5, 5, 0}, {now, 1, 1, 0, 0}}}}},
	{"TheLongerWindowIsNotForgottenMeanwhile", []Part{
		{slow(5), []Step{{now, 2, 2, 2, 3}}}, {fivePer(30 * ms), []Step{{eventually, 5, 5, 5, 0}, {eventually, 5, 5, 5, 0}}}, {slow(5), []Step{{eventually, 3, 3, 3, 0}, {now, 1, 1, 0, 0}}},
	}},
}
