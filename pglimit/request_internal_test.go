package pglimit

import (
	"reflect"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A field of a Request that is forgotten on the way to the strategy, or back to a hook, is noticed. MaxWait is the
// Limiter's alone.
func TestNoFieldOfARequestIsLost(t *testing.T) {
	t.Parallel()
	r := Request{
		Key: "k", Tokens: 6, Unit: 2, Limit: rate.PerHour(7), Limiter: "api",
		Ahead: time.Second, ID: "id", Durability: Durable,
	}
	asked := r.asked()
	if got := told(&asked); got != r {
		t.Errorf("%+v became %+v", r, got)
	}
	for i := range reflect.TypeFor[Request]().NumField() {
		if name := reflect.TypeFor[Request]().Field(i).Name; name != "MaxWait" && reflect.ValueOf(r).Field(i).IsZero() {
			t.Errorf("%s is not asked for here", name)
		}
	}
}
