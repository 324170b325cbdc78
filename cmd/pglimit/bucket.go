package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// bucketFlags are the flags of the commands about one key: which bucket, under
// which limit, and how long to wait for an answer.
type bucketFlags struct {
	limiter    string
	strategy   string
	timeout    time.Duration
	limits     []string
	durability string
}

// addTo defines the flags that name a bucket.
func (b *bucketFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&b.limiter, "limiter", "cli",
		"`NAME` of the limiter: the same key under another name is another bucket")
	var names []string
	for _, s := range strategies.All() {
		names = append(names, s.Name())
	}
	b.strategy = names[0]
	choiceVar(cmd, flags, &b.strategy, "strategy", "`STRATEGY` that decides", names...)
	timeoutVar(flags, &b.timeout)
}

// addLimitTo defines the flag that says how much is allowed; without says what it is if it is not given.
func (b *bucketFlags) addLimitTo(cmd *cobra.Command, without string) {
	cmd.Flags().StringArrayVar(&b.limits, "limit", nil,
		"how much is allowed: `TOKENS/PERIOD`, such as 1/10m, 100/s or \"100/1m burst 20\" ("+without+")")
}

// addDurabilityTo defines the flag for commands that take.
func (b *bucketFlags) addDurabilityTo(cmd *cobra.Command) {
	b.durability = pglimit.Relaxed.String()
	choiceVar(cmd, cmd.Flags(), &b.durability, "durability",
		"`DURABILITY` of the grant, durable waits for the disk", pglimit.Relaxed.String(), pglimit.Durable.String())
}

// parseLimits parses one --limit, or more if the command takes several.
func (b *bucketFlags) parseLimits(cmd *cobra.Command, several bool) ([]pglimit.Limit, error) {
	if len(b.limits) > 1 && !several {
		return nil, usagef(cmd, "%s takes one --limit, and here are %d", cmd.Name(), len(b.limits))
	}
	if len(b.limits) == 0 || b.limits[0] == "" {
		return nil, usagef(cmd, "%s needs a --limit, such as --limit 100/1m", cmd.Name())
	}
	limits := make([]pglimit.Limit, len(b.limits))
	for i, text := range b.limits {
		var err error
		if limits[i], err = pglimit.ParseLimit(text); err != nil {
			return nil, err
		}
		if slices.Contains(limits[:i], limits[i]) {
			return nil, usagef(cmd, "--limit %s is given twice: once is enough", text)
		}
	}
	return limits, nil
}

// ask connects and calls do with a limiter, within --timeout plus --wait. config has the Limit, and what only some
// commands set.
func (b *bucketFlags) ask(ctx context.Context, a *app, config pglimit.Config,
	do func(context.Context, *pglimit.Limiter) error) error {
	strategy, err := strategies.ByName(b.strategy)
	if err != nil {
		return err
	}
	// A single request cannot be combined. Uncombined, it ends exactly when its time is over.
	config.Combine.Off, config.Memory.Off, config.Breaker.Off = true, true, true
	config.Name, config.Timeout = b.limiter, pglimit.NoTimeout // --timeout is for the whole command
	if b.durability != "" {
		if config.Durability, err = pglimit.ParseDurability(b.durability); err != nil {
			return err
		}
	}
	wait := min(config.MaxWait, pglimit.MaxWindow) // New refuses what is longer
	const unanswered = ": it is not known whether PostgreSQL did what was asked"
	return inFlags(a.within(ctx, b.timeout, wait, unanswered, func(ctx context.Context, pool *pgxpool.Pool) error {
		limiter, err := pglimit.New(pool, strategy, config)
		if err != nil {
			return err
		}
		return do(ctx, limiter)
	}))
}

// inFlags explains a request's error in terms of the flags.
func inFlags(err error) error {
	var config *pglimit.ConfigError
	var request *pglimit.RequestError
	var limit *pglimit.LimitError
	switch {
	case errors.As(err, &limit):
		return fmt.Errorf("limit %v: %s %s", limit.Limit, strings.ToLower(limit.Field), limit.Why)
	case errors.As(err, &config):
		if name, ok := map[string]string{"Name": "--limiter", "MaxWait": "--wait", "IDTTL": "--id-ttl"}[config.Field]; ok {
			return fmt.Errorf("%s %w", name, config.Err)
		}
	case errors.As(err, &request):
		name, ok := map[string]string{"Limiter": "--limiter", "Key": "KEY", "Tokens": "--tokens", "Unit": "--tokens",
			"ID": "--id"}[request.Field]
		if !ok {
			return err
		}
		return fmt.Errorf("%s %s", name, request.Why)
	case errors.Is(err, errors.ErrUnsupported):
		return errors.New(strings.TrimSuffix(err.Error(), ": "+errors.ErrUnsupported.Error()))
	}
	return err
}
