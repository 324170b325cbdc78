package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/serve"
	"github.com/pglimit/ratelimit/pglimit"
)

const allowLong = `Take tokens of a key's bucket, if they are there.

The answer is the exit code: 0 allowed, 1 denied, 2 no decision (stderr says
why). A denial takes and writes nothing. Any number of machines may ask at once;
the same key, --limiter and --strategy mean the same bucket for all of them, and
the services that use that limiter share it too. With the strategy
for_update_nowait, denied can also mean that another request was being decided.

--wait waits in line for tokens that come in that time: first come, first
served, across all machines. If they come later, it denies at once and takes
nothing.

With several --limit, the tokens are taken from all of them or from none, in one
step. Each then has a separate bucket, whose limiter is --limiter and the
limit: for --limit 10/s --limit 1000/24h they are "cli 10/1s" and "cli
1000/24h".

--id makes it safe to try again when the outcome is not known: the same ID is
charged once, and gets its first answer, for as long as --id-ttl.

Blocks of a service that shares the limiter are neither counted nor obeyed.`

// allowFlags are the flags of allow.
type allowFlags struct {
	bucketFlags
	tokens int64
	wait   time.Duration
	id     string
	idTTL  time.Duration
	quiet  bool
}

func newAllowCommand(a *app) *cobra.Command {
	var f allowFlags
	cmd := &cobra.Command{
		Use:   "allow KEY --limit TOKENS/PERIOD",
		Short: "Take tokens: exit 0 if allowed, 1 if denied",
		Long:  allowLong,
		Example: lines(
			"# at most one report in ten minutes, from whatever machine",
			"pglimit allow nightly-report --limit 1/10m && ./report.sh",
			"",
			"# skip if denied, go ahead if the database is down",
			"pglimit allow \"mail:$CUSTOMER\" --limit 20/1h --quiet",
			"case $? in 1) echo 'too many mails' ;; *) send-mail ;; esac",
			"",
			"# two a second for all workers together, each waits for its turn",
			"pglimit allow partner-api --limit 2/s --wait 30s && curl partner.example",
			"",
			"# both or none",
			"pglimit allow \"sms:$CUSTOMER\" --limit 1/1m --limit 20/24h && send-sms",
		),
		Args: takes("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.allow(cmd, &f, args[0]) },
	}
	f.addLimitTo(cmd, "required")
	flags := cmd.Flags()
	flags.Lookup("limit").Usage += "; once for each limit"
	flags.Int64Var(&f.tokens, "tokens", 1, "`TOKENS` to take, all or none")
	flags.DurationVar(&f.wait, "wait", 0, "longest `TIME` to wait for the tokens, in addition to --timeout")
	flags.StringVar(&f.id, "id", "", "`ID` of the request: it is charged once, however often it is sent")
	flags.DurationVar(&f.idTTL, "id-ttl", time.Minute, "`TIME` that an --id is kept")
	f.addTo(cmd)
	f.addDurabilityTo(cmd)
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing: the exit code is the answer")
	return cmd
}

func (a *app) allow(cmd *cobra.Command, f *allowFlags, key string) error {
	limits, err := f.parseLimits(cmd, true)
	if err != nil {
		return inFlags(err)
	}
	if err := f.check(cmd, limits); err != nil {
		return err
	}
	answer, err := f.take(cmd.Context(), a, key, limits)
	if err != nil {
		return err
	}
	if !f.quiet {
		err = a.print(answer.json, answer.text+"\n")
	}
	if err == nil && !answer.allowed {
		return exitDenied
	}
	return err
}

// check checks the flags together.
func (f *allowFlags) check(cmd *cobra.Command, limits []pglimit.Limit) error {
	switch {
	case f.tokens < 1:
		return fmt.Errorf("--tokens is %d: it must be at least 1; \"pglimit peek\" looks without taking", f.tokens)
	case f.wait < 0:
		return fmt.Errorf("--wait is %v: it must not be negative", f.wait)
	case f.wait > 0 && limits[0].Calendar != "":
		return usagef(cmd, "allow takes --wait with no window of the calendar, such as %v: leave --wait out, and ask "+
			"again after the time that the answer says", limits[0])
	case f.wait > 0 && f.id != "":
		return usagef(cmd, "allow takes --wait or --id, not both: a request with an ID does not wait")
	case len(limits) > 1 && (f.wait > 0 || f.id != ""):
		return usagef(cmd, "allow takes --wait and --id with one --limit only, and here are %d", len(limits))
	case cmd.Flags().Changed("id-ttl") && f.id == "":
		return usagef(cmd, "allow takes --id-ttl only with --id")
	case cmd.Flags().Changed("id") && f.id == "":
		return errors.New("--id is empty: name the request, or leave it out")
	}
	return nil
}

// answer of allow.
type answer struct {
	allowed bool
	json    any
	text    string
}

// take makes the request that the flags describe.
func (f *allowFlags) take(ctx context.Context, a *app, key string, limits []pglimit.Limit) (answer, error) {
	if len(limits) > 1 {
		return f.takeAll(ctx, a, key, limits)
	}
	limit := limits[0]
	config := pglimit.Config{Limit: limit, MaxWait: f.wait, IDTTL: f.idTTL}
	var d pglimit.Decision
	late := false
	err := f.ask(ctx, a, config, func(ctx context.Context, limiter *pglimit.Limiter) (err error) {
		switch {
		case f.wait > 0:
			d, err = limiter.WaitN(ctx, key, f.tokens)
			if late = errors.Is(err, pglimit.ErrWaitTooLong); late {
				err = nil
			}
		case f.id != "":
			d, err = limiter.Do(ctx, pglimit.Request{Key: key, Tokens: f.tokens, ID: f.id})
		default:
			d, err = limiter.AllowN(ctx, key, f.tokens)
		}
		return err
	})
	if err != nil {
		return answer{}, err
	}
	d.RetryAfter, d.ResetAfter = max(0, d.RetryAfter-d.Delay), max(0, d.ResetAfter-d.Delay) // minus the time waited
	text := allowText(limit, d)
	if late {
		text = fmt.Sprintf("denied: the tokens come in %s, later than --wait %v allows", shortDuration(d.RetryAfter),
			f.wait)
	}
	return answer{d.Allowed, serve.NewDecision(d), text}, nil
}

// takeAll takes from a bucket per limit, or from none.
func (f *allowFlags) takeAll(ctx context.Context, a *app, key string, limits []pglimit.Limit) (answer, error) {
	requests := make([]pglimit.Request, len(limits))
	for i, limit := range limits {
		name := f.limiter + " " + limit.String()
		requests[i] = pglimit.Request{Limiter: name, Key: key, Limit: limit, Tokens: f.tokens}
	}
	var g pglimit.Group
	config := pglimit.Config{Limit: limits[0]}
	err := f.ask(ctx, a, config, func(ctx context.Context, limiter *pglimit.Limiter) (err error) {
		g, err = limiter.DoAll(ctx, requests...)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	return answer{g.Allowed, serve.NewGroup(g), groupText(g)}, nil
}
