//go:build unix

package prove

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pglimit/ratelimit/strategies/audit"
)

const isWorker = "PGLIMIT_PROVE_WORKER"

// This program is the worker processes, too.
func TestMain(m *testing.M) {
	if os.Getenv(isWorker) == "" {
		os.Exit(m.Run())
	}
	if err := Work(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Some faults of each kind, and all that is planted.
func TestTheProofHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a server")
	}
	t.Setenv(isWorker, "yes")
	result, err := Run(t.Context(), Config{
		Seed: 5, Length: 20 * time.Second, Worker: []string{os.Args[0]},
		Faults: []string{"process killed", "backend killed", "cut after", "table locked"}, Say: func(what string) { t.Log(what) },
	})
	if err != nil && strings.Contains(err.Error(), "install initdb") && os.Getenv("CI") != "true" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if !result.OK() {
		t.Errorf("%+v", result)
	}
}

// What a killed process has asked and did not hear of excuses a denial, and no grant.
func TestWhatAKilledProcessAsked(t *testing.T) {
	t.Parallel()
	const at = `"at":"2026-05-04T12:00:00Z","limit":"1/24h burst 100"`
	p := &prover{told: make(map[uint64]line)}
	told := strings.Join([]string{
		`{"limiter":"counter","key":"k",` + at + `,"tokens":60,"unknown":true,"call":1}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":30,"unknown":true,"call":2}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":30,"granted":30,"call":2,"ended":5}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":60,"granted":0,"call":3,"ended":5}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":50,"gran`,
	}, "\n")
	c := &child{prover: p}
	for i := range told {
		if n, err := c.Write([]byte(told[i : i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	var result Result
	var out strings.Builder
	p.Out = &out
	var f Fault
	err := p.judgeRound(&round{Fault: &f, lines: slices.Collect(maps.Values(p.told))}, &result, 29)
	if err != nil || len(p.findings) != 1 || f != (Fault{Times: 1, After: 2, Unknown: 1, Lost: 1}) {
		t.Errorf("%v, %q: %+v", err, p.findings, f)
	}
	if q := result.Porcupine; q != (Porcupine{Histories: 1, Operations: 3, Unknown: 1}) || result.Decisions != 2 {
		t.Errorf("%+v", result)
	}
	log, err := audit.ReadLog(strings.NewReader(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	if j := log.Check()[0]; !j.OK() || j.Unknown != 1 || j.Denials != 1 {
		t.Errorf("%+v", j)
	}
}

// By the machine's clock, a grant counts if its call was short.
func TestAClockThatStepped(t *testing.T) {
	t.Parallel()
	judge := func(began int64) []string { // of five seconds' tokens, each granted at the same moment
		r := &round{Fault: &Fault{Name: clockStepped}}
		for range 100 {
			record := audit.Record{Limiter: "wait", Key: "k", Limit: audit.Limit{Limit: waitLimit}, Tokens: 1, Granted: 1}
			r.lines = append(r.lines, line{Record: record, Began: began, Ended: int64(time.Minute)})
		}
		var p prover
		if err := p.judgeRound(r, &Result{}, 0); err != nil {
			t.Fatal(err)
		}
		return p.findings
	}
	if found := judge(0); len(found) > 0 {
		t.Error("they may have been granted in a minute:", found)
	}
	if found := judge(int64(time.Minute) - 1); len(found) != 1 {
		t.Error("100 at once:", found)
	}
}

func TestPorcupineRefuses(t *testing.T) {
	t.Parallel()
	asked := func(began, ended, tokens, granted int64) porcupine.Operation {
		return new(Porcupine).operation(line{Record: audit.Record{Tokens: tokens, Granted: granted}, Began: began, Ended: ended})
	}
	for name, history := range map[string][]porcupine.Operation{
		"too much":                  {asked(1, 2, 60, 60), asked(3, 4, 60, 60)},
		"a denial before the grant": {asked(1, 2, 60, 0), asked(3, 4, 60, 60)},
	} {
		var q Porcupine
		if q.check(history) || q.Refused != 1 {
			t.Errorf("%s: %+v", name, q)
		}
	}
	var q Porcupine
	if !q.check([]porcupine.Operation{asked(1, 5, 60, 0), asked(2, 4, 60, 60)}) {
		t.Error("of two at once, either may come first")
	}
}

func TestMostPermits(t *testing.T) {
	t.Parallel()
	spans := []line{{Began: 1, Ended: 5, Permit: 2}, {Began: 5, Ended: 9, Permit: 1}, {Began: 6, Ended: 7, Permit: 2}}
	if most := mostPermits(spans); most != 3 {
		t.Error(most)
	}
}
