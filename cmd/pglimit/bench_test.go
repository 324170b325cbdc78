package main

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
	"github.com/pglimit/ratelimit/pglimit"
)

func TestBenchFlagsAreTheConfiguration(t *testing.T) {
	t.Parallel()
	b := newBenchFlags()
	cmd := newBenchCommand(&app{})
	cmd.ResetFlags()
	b.addTo(cmd)
	err := cmd.ParseFlags(strings.Fields("--strategies upsert,token_bucket --limit 1000/1s --burst 10000 --keys 100 --callers 8 --duration 3s --durability durable"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.config(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if got.Limit != pglimit.PerSecond(1000).WithBurst(10000) || got.Keys != 100 || got.Callers != 8 || got.Duration != 3*time.Second || got.Durability != pglimit.Durable {
		t.Errorf("%+v", got)
	}
	if len(got.Strategies) != 2 || got.Strategies[0].Name() != "upsert" || got.Strategies[1].Name() != "token_bucket" {
		t.Errorf("strategies %v", got.Strategies)
	}
}

// The stages are the library's, unless told: their defaults are nobody's to repeat but
// the help's.
func TestBenchSwitchesStages(t *testing.T) {
	t.Parallel()
	config := func(args string) bench.Config {
		b := newBenchFlags()
		cmd := newBenchCommand(&app{})
		cmd.ResetFlags()
		b.addTo(cmd)
		config, err := b.config(cmd)
		if err == nil {
			err = cmd.ParseFlags(strings.Fields(args))
		}
		if err == nil {
			config, err = b.config(cmd)
		}
		if err != nil {
			t.Fatal(err)
		}
		config.Strategies = nil
		return config
	}
	want := bench.DefaultConfig()
	if got := config(""); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	want.NoCombining, want.Lanes, want.MaxWaiting, want.NoMemory = true, 2, 3, true
	want.DenialTTL, want.DenialKeys, want.Leases, want.LeaseTTL = 4*time.Second, 5, true, 6*time.Second
	if got := config("--no-combining --lanes 2 --max-waiting 3 --no-memory --denial-ttl 4s --denial-keys 5 --leases --lease-ttl 6s"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The help says what the library does without a setting, and the library says so too.
func TestBenchHelpKnowsTheDefaults(t *testing.T) {
	t.Parallel()
	cmd := newBenchCommand(&app{})
	for args, flag := range map[string]string{
		"--lanes -1": "lanes", "--max-waiting -1": "max-waiting", "--denial-ttl -1s": "denial-ttl",
		"--denial-keys -1": "denial-keys", "--lease-ttl -1s": "lease-ttl",
	} {
		_, _, stderr := call(t.Context(), append([]string{"bench"}, strings.Fields(args)...)...)
		_, said, _ := strings.Cut(stderr, "0 means ")
		said, _, _ = strings.Cut(strings.Fields(said + " -")[0], ",")
		if usage := cmd.Flags().Lookup(flag).Usage; !strings.HasSuffix(usage, "(default: "+said+")") {
			t.Errorf("0 means %q, and the help of --%s says %q", said, flag, usage)
		}
	}
}

func TestBenchRunsAllStrategiesUnlessTold(t *testing.T) {
	t.Parallel()
	b := newBenchFlags()
	cmd := newBenchCommand(&app{})
	cmd.ResetFlags()
	b.addTo(cmd)
	config, err := b.config(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if len(config.Strategies) != 4 {
		t.Errorf("%d strategies, want all 4", len(config.Strategies))
	}
}

func TestBenchRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--strategies nosuch":              `there is no "nosuch", only token_bucket, upsert, for_update_nowait, exclusion_range`,
		"--strategies upsert --limit none": "--limit: ",
		"--burst 0":                        "--burst is 0",
		"--keys 0":                         "--keys is 0",
		"--cost 1001":                      "--cost is 1001",
		"--distribution normal":            "uniform, zipf",
		"--rps -1":                         "--rps is -1",
		"--lanes 1025":                     "--lanes is 1025: it must be from 1 to 1024; 0 means 2",
		"--lease-ttl 1ms":                  "--lease-ttl is 1ms: it must be from 10ms to 10s; 0 means 1s",
		"extra":                            "no arguments",
	} {
		code, stdout, stderr := call(t.Context(), append([]string{"bench"}, strings.Fields(args)...)...)
		if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
			t.Errorf("bench %s: exit code %d, stdout %q, stderr %q; want one line with %q", args, code, stdout, stderr, want)
		}
	}
}

// That a throwaway server is left running must be heard of.
func TestBenchSaysThatItsServerWasNotRemoved(t *testing.T) {
	t.Parallel()
	place := benchPlace{remove: func() error { return errors.New("it will not die") }}
	for name, ended := range map[string]error{"well": nil, "by Ctrl-C": context.Canceled, "over the limit": exitDenied} {
		var stderr bytes.Buffer
		err := ended
		(&app{stderr: &stderr}).leave(place, &err)
		heard := stderr.String()
		if ended == nil && err != nil {
			heard = err.Error() // main prints it
		} else if !errors.Is(err, ended) {
			t.Errorf("a bench that ended %s now ended with %v", name, err)
		}
		if !strings.Contains(heard, "cannot remove the throwaway Postgres: it will not die") {
			t.Errorf("a bench that ended %s says %q", name, heard)
		}
	}
}

func TestBenchDrawsNoBarIntoAFile(t *testing.T) {
	t.Parallel()
	if newBenchProgress(&bytes.Buffer{}) != nil {
		t.Error("it draws")
	}
}

func TestBenchBarShowsTheStrategyAndItsRate(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	draw := drawProgress(&out)
	draw(bench.Progress{Strategy: "upsert", Number: 2, Of: 4, Elapsed: 2 * time.Second, Last: 4 * time.Second, Answered: 1000})
	if got := out.String(); !strings.Contains(got, "2/4 upsert, 500/s") || !strings.Contains(got, "50%") {
		t.Errorf("the bar is %q", got)
	}
	draw(bench.Progress{Strategy: "upsert", Number: 2, Of: 4, Elapsed: 4 * time.Second, Last: 4 * time.Second, Done: true})
	if got := out.String(); !strings.HasSuffix(strings.TrimRight(got, " "), "\r") {
		t.Errorf("the bar is not cleared: %q", got)
	}
}
