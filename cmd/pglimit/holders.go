package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/internal/postgres"
)

const holdersLong = `List who holds places of a key, oldest first: of "pglimit run", or of a Go
semaphore, which --limiter names. Without a KEY, list the holders of all keys,
of every semaphore or of the one that --limiter names. A place that was not
given back, because its process was killed, is listed until it expires. Times
are UTC.`

func newHoldersCommand(a *app) *cobra.Command {
	limiter, timeout := "cli", 10*time.Second
	cmd := &cobra.Command{
		Use:   "holders [KEY]",
		Short: "List who holds places of a key, or of all",
		Long:  holdersLong,
		Example: lines(
			"pglimit holders nightly",
			"pglimit holders tenant:42 --limiter imports",
			"pglimit holders --output json | jq '.holders[].holder'",
		),
		Args: takes("[KEY]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var name, key *string // nil: any
			if len(args) == 1 {
				key = &args[0]
			}
			if key != nil || cmd.Flags().Changed("limiter") {
				name = &limiter
			}
			if limiter == "" {
				return errors.New("--limiter is empty: leave it out for all semaphores")
			}
			var holders []holderJSON
			err := a.within(cmd.Context(), timeout, 0, "", func(ctx context.Context, pool *pgxpool.Pool) (err error) {
				holders, err = readHolders(ctx, pool, name, key)
				return err
			})
			if err != nil {
				return err
			}
			return a.printHolders(holders)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&limiter, "limiter", limiter,
		"`NAME` of the semaphore: the same key under another name has other places")
	timeoutVar(flags, &timeout)
	return cmd
}

type holderJSON struct {
	Limiter   string    `json:"limiter"`
	Key       string    `json:"key"`
	Holder    string    `json:"holder"`
	Weight    int64     `json:"weight"`
	Token     int64     `json:"token,string"` // too large for the numbers of many readers
	Since     time.Time `json:"since"`
	ExpiresAt time.Time `json:"expires_at"` // unless it is renewed
}

func readHolders(ctx context.Context, pool *pgxpool.Pool, limiter, key *string) ([]holderJSON, error) {
	rows, err := pool.Query(ctx, `
		select limiter, key, holder, weight, token, since, expires_at
		from pglimit.holders
		where ($1::text is null or limiter operator(pg_catalog.=) $1::text)
			and ($2::text is null or key operator(pg_catalog.=) $2::text)
		order by limiter, key, token`, limiter, key)
	if err != nil {
		return nil, postgres.Explain(err)
	}
	holders, err := pgx.CollectRows(rows, pgx.RowToStructByPos[holderJSON])
	for i := range holders {
		holders[i].Since, holders[i].ExpiresAt = holders[i].Since.UTC(), holders[i].ExpiresAt.UTC()
	}
	return holders, postgres.Explain(err)
}

func (a *app) printHolders(holders []holderJSON) error {
	out := struct {
		Holders []holderJSON `json:"holders"` // by limiter and key, the oldest first
	}{holders}
	text := "nobody holds a place\n"
	var rows [][]string
	for _, h := range holders {
		rows = append(rows, []string{
			word(h.Limiter), word(h.Key), word(h.Holder),
			strconv.FormatInt(h.Weight, 10), strconv.FormatInt(h.Token, 10),
			h.Since.Format(time.DateTime), h.ExpiresAt.Format(time.DateTime),
		})
	}
	if len(rows) > 0 {
		text = columns([]string{"LIMITER", "KEY", "HOLDER", "WEIGHT", "TOKEN", "SINCE", "EXPIRES"}, rows)
	}
	return a.print(out, text)
}
