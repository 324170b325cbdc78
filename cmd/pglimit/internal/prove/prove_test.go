//go:build unix

package prove

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
		Seed: 5, Length: 20 * time.Second, Processes: 2, Callers: 6, Worker: []string{os.Args[0]}, Pictures: filepath.Join(t.TempDir(), "p"),
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
	p := &prover{rounds: []*round{{}}}
	c := &child{read: make(chan struct{})}
	p.listen(c, strings.NewReader(strings.Join([]string{
		`{"limiter":"counter","key":"k",` + at + `,"tokens":60,"unknown":true,"begin":true,"call":1}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":30,"unknown":true,"begin":true,"call":2}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":30,"granted":30,"call":2,"ended":5}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":60,"granted":0,"call":3,"ended":5}`,
		`{"limiter":"counter","key":"k",` + at + `,"tokens":50,"gran`,
	}, "\n")))
	r := p.rounds[0]
	j := r.log.Check()[0]
	if p.failed != nil || !j.OK() || j.Unknown != 1 || j.Denials != 1 || r.counted != 30 || len(r.counts) != 3 {
		t.Errorf("%v: %+v, %+v", p.failed, j, r)
	}
	var q Porcupine
	if ok, err := q.check(r.counts, ""); !ok || err != nil {
		t.Error(q, err)
	}
	var f Fault
	if found := r.judge(&f, 29); f.Lost != 1 || len(found) != 1 {
		t.Error(f, found)
	}
}

// By the machine's clock, a grant counts if its call was short.
func TestAClockThatStepped(t *testing.T) {
	t.Parallel()
	r := &round{fault: &fault{name: clockStepped}, first: make(map[int]int64)}
	judge := func(began int64) []string {
		for range 100 { // five seconds' tokens, and answered at once
			record := audit.Record{Limiter: "wait", Key: "k", Limit: audit.Limit{Limit: waitLimit}, Tokens: 1, Granted: 1}
			if err := r.add(line{Record: record, Began: began, Ended: int64(time.Minute)}); err != nil {
				t.Fatal(err)
			}
		}
		return r.judge(&Fault{}, 0)
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
		return operation(line{Record: audit.Record{Tokens: tokens, Granted: granted}, Began: began, Ended: ended})
	}
	for name, history := range map[string][]porcupine.Operation{
		"too much":                  {asked(1, 2, 60, 60), asked(3, 4, 60, 60)},
		"a denial before the grant": {asked(1, 2, 60, 0), asked(3, 4, 60, 60)},
	} {
		var q Porcupine
		picture := filepath.Join(t.TempDir(), "picture.html")
		ok, err := q.check(history, picture)
		if _, missing := os.Stat(picture); ok || err != nil || missing != nil || q.Refused != 1 {
			t.Errorf("%s: %+v, %v, %v", name, q, err, missing)
		}
	}
	var q Porcupine
	if ok, _ := q.check([]porcupine.Operation{asked(1, 5, 60, 0), asked(2, 4, 60, 60)}, ""); !ok {
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
