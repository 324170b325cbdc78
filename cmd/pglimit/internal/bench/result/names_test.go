package result_test

import (
	"encoding/json"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Scripts read these fields of the first releases. A field may be added, but none may be
// renamed or change its kind: null here is a field that may be null.
const earlier = `{
	"parameters": {
		"loop": "", "callers": 0, "instances": 0, "conns": 0, "keys": 0, "distribution": "", "limit": "", "cost": 0,
		"rps": 0, "arrivals": "",
		"durability": "", "timeout_seconds": 0, "warmup_seconds": 0, "duration_seconds": 0, "audit_decisions": 0,
		"combining": false, "lanes": 0, "max_waiting": 0, "memory": false, "denial_ttl_seconds": 0, "denial_keys": 0,
		"leases": false, "lease_ttl_seconds": 0, "seed": 0
	},
	"server": {"version": "", "source": ""},
	"interrupted": false,
	"runs": [{
		"strategy": "", "limit": "", "cost": 0, "storage": null, "seconds": 0,
		"decisions": 0, "decisions_per_second": 0,
		"latency_us": {"p50": 0, "p90": 0, "p99": 0, "p999": 0, "max": 0},
		"allowed": 0, "denied": 0, "contended": 0, "errors": {"timeout": 0}, "first_errors": {"timeout": ""},
		"stages": {
			"combining": false, "memory": false, "leases": false,
			"round_trips_per_decision": 0, "remembered_ratio": 0, "leased_ratio": 0, "callers_per_round_trip": 0, "requests_per_round_trip": 0,
			"remembered": 0, "leased": 0, "decided": 0, "round_trips": 0, "requests": 0,
			"lease_trips": 0, "leased_tokens": 0, "unspent_tokens": 0, "passed_on_tokens": 0, "given_back_tokens": 0, "lost_tokens": 0
		},
		"deadlocks": null, "wal_bytes_per_decision": null, "transaction_ids_per_decision": null,
		"dead_tuples": null, "hot_update_ratio": null, "statistics_complete": false,
		"audit": {
			"verdict": "", "over_tokens": 0, "worst": "", "denials_not_due": 0,
			"audited": 0, "audited_grants": 0, "audited_denials": 0, "judged_denials": 0,
			"denial_sampling": 0, "complete": false, "keys_with_lost_answers": 0
		}
	}]
}`

func TestFieldsThatScriptsReadKeepTheirNames(t *testing.T) {
	t.Parallel()
	r := result.Report{
		Parameters: &result.Parameters{RPS: 5, Arrivals: "poisson"},
		Runs: []result.Run{{
			Errors: map[string]int64{"timeout": 1}, FirstErrors: map[string]string{"timeout": "late"},
			Audit: &result.Audit{Worst: "user:1"},
		}},
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := json.Unmarshal([]byte(earlier), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	sameFields(t, "", want, got)
}

// sameFields fails if a field of want is not in got, or is of another kind.
func sameFields(t *testing.T, path string, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			t.Errorf("%s is %T, want an object", path, got)
			return
		}
		for name, value := range want {
			there, ok := object[name]
			if !ok {
				t.Errorf("there is no %s.%s any more", path, name)
				continue
			}
			sameFields(t, path+"."+name, value, there)
		}
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) == 0 {
			t.Errorf("%s is %v, want a list", path, got)
			return
		}
		sameFields(t, path+"[0]", want[0], list[0])
	case nil:
		if got != nil {
			t.Errorf("%s is %v where nothing is known, want null", path, got)
		}
	case float64:
		if _, ok := got.(float64); !ok {
			t.Errorf("%s is %T, want a number", path, got)
		}
	case string:
		if _, ok := got.(string); !ok {
			t.Errorf("%s is %T, want a string", path, got)
		}
	case bool:
		if _, ok := got.(bool); !ok {
			t.Errorf("%s is %T, want a bool", path, got)
		}
	}
}
