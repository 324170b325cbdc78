package strategies_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

func TestWarmUpRefusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	second := rate.PerSecond(1)
	for want, test := range map[string]struct {
		strategy strategies.WarmUp
		request  rate.Request
	}{
		"WarmUp.Period is -1ns":       {strategies.WarmUp{Period: -1}, rate.Request{Limit: second}},
		"WarmUp.Period is 24h0m0.000": {strategies.WarmUp{Period: 24*time.Hour + 1}, rate.Request{Limit: second}},
		"WarmUp.ColdFactor is 0.5":    {strategies.WarmUp{ColdFactor: 0.5}, rate.Request{Limit: second}},
		"WarmUp.ColdFactor is -3":     {strategies.WarmUp{ColdFactor: -3}, rate.Request{Limit: second}},
		"WarmUp.ColdFactor is NaN":    {strategies.WarmUp{ColdFactor: math.NaN()}, rate.Request{Limit: second}},
		"WarmUp.ColdFactor is +Inf":   {strategies.WarmUp{ColdFactor: math.Inf(1)}, rate.Request{Limit: second}},
		"Calendar":                    {strategies.WarmUp{}, rate.Request{Limit: rate.PerDay(1).Fixed()}},
		"all or nothing":              {strategies.WarmUp{}, rate.Request{Limit: second, Group: 1}},
		"an ID":                       {strategies.WarmUp{}, rate.Request{Limit: second, ID: "id"}},
		"block keys":                  {strategies.WarmUp{}, rate.Request{Limit: second, Block: new(rate.Block)}},
	} {
		if err := test.strategy.Check(&test.request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", test, err, want)
		} else if test.request.Limit == second && test.strategy == (strategies.WarmUp{}) && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v is not ErrUnsupported", err)
		}
	}
	for _, strategy := range []strategies.WarmUp{{}, {Period: 1, ColdFactor: 1}, {Period: 24 * time.Hour, ColdFactor: 1000}} {
		if err := strategy.Check(&rate.Request{Limit: second, Ahead: time.Hour}); err != nil {
			t.Error(err)
		}
	}
}
