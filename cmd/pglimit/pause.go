package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/internal/postgres"
)

const pauseLong = `Let nobody take tokens of a key before a time, in any process: because the API
that the limit protects has said when it may be called again. At that time one
token is there, and the others come back behind it. Who waits takes behind it.

A pause can only be extended; "pglimit reset KEY" ends it. Only the strategy
token_bucket can pause.

A process with leases may grant out of them for a few seconds more: then this
says how long.`

func newPauseCommand(a *app) *cobra.Command {
	limiter, timeout := "cli", 10*time.Second
	var length time.Duration
	var until string
	cmd := &cobra.Command{
		Use:   "pause KEY --for TIME | --until TIME",
		Short: "Let nobody take from a key for a time",
		Long:  pauseLong,
		Example: lines(
			"pglimit pause api.example.com --limiter partner --for 30s",
			"pglimit pause api.example.com --until 2026-12-24T18:00:00Z",
		),
		Args: takes("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := cmd.Flags()
			switch {
			case !flags.Changed("for") && !flags.Changed("until"):
				return usagef(cmd, "pause needs --for, such as --for 30s, or --until, such as --until 2026-12-24T18:00:00Z")
			case flags.Changed("for") && flags.Changed("until"):
				return usagef(cmd, "pause takes either --for or --until")
			case flags.Changed("for") && length <= 0:
				return fmt.Errorf("--for is %v: it must be positive", length)
			}
			var end *time.Time
			if flags.Changed("until") {
				at, err := time.Parse(time.RFC3339, until)
				if err != nil {
					return fmt.Errorf("--until is %q: write it like 2026-12-24T18:00:00Z", until)
				}
				end = &at
			}
			return a.pause(cmd.Context(), timeout, limiter, args[0], length, end)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&length, "for", 0, "how long, a `TIME` such as 30s or 1h")
	flags.StringVar(&until, "until", "", "or until when, a `TIME` such as 2026-12-24T18:00:00Z")
	flags.StringVar(&limiter, "limiter", limiter,
		"`NAME` of the limiter: the same key under another name is another bucket")
	timeoutVar(flags, &timeout)
	return cmd
}

// pause for a time, or until a time if that is not nil.
func (a *app) pause(ctx context.Context, timeout time.Duration, limiter, key string, length time.Duration,
	until *time.Time) error {
	var ends *time.Time
	var leased time.Duration
	const unanswered = ": it is not known whether PostgreSQL did what was asked"
	err := a.within(ctx, timeout, 0, unanswered, func(ctx context.Context, pool *pgxpool.Pool) error {
		err := pool.QueryRow(ctx, `select pglimit.pause($1::text, $2::text,
			coalesce($3::timestamptz, pg_catalog.clock_timestamp() operator(pg_catalog.+) $4::interval))`,
			limiter, key, until, length).Scan(&leased)
		if err != nil {
			return postgres.ExplainStep(err)
		}
		err = pool.QueryRow(ctx, `select pg_catalog.max(paused_until) from pglimit.buckets
			where limiter operator(pg_catalog.=) $1::text and key operator(pg_catalog.=) $2::text`, limiter, key).Scan(&ends)
		return postgres.ExplainStep(err)
	})
	var refused *pgconn.PgError
	const invalidParameterValue = "22023"
	if errors.As(err, &refused) && refused.Code == invalidParameterValue {
		err = errors.New(strings.TrimPrefix(refused.Message, "pglimit: "))
	}
	switch {
	case err != nil:
		return err
	case ends == nil && until != nil:
		return fmt.Errorf("--until %s has passed, by the clock of PostgreSQL: nothing is paused", until.Format(time.RFC3339))
	case ends == nil: // it was short
		ends = new(time.Now())
	}
	text := fmt.Sprintf("paused: nobody takes from %q before %s (limiter %q)\n", key,
		ends.UTC().Format(time.RFC3339), limiter)
	if leased > 0 {
		text += fmt.Sprintf("but leases: processes that have some may grant out of them for up to %v\n",
			leased.Round(time.Millisecond))
	}
	return a.print(struct {
		Limiter string    `json:"limiter"`
		Key     string    `json:"key"`
		Until   time.Time `json:"paused_until"`
		Leased  int64     `json:"leased_ms"` // for so long others may still grant out of leases
	}{limiter, key, ends.UTC(), leased.Milliseconds()}, text)
}
