package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/semaphore"
)

const holdersLong = `List who holds places of a key, oldest first: of "pglimit run", or of a Go
semaphore, which --limiter names. Without a KEY, list the holders of all keys,
of every semaphore or of the one that --limiter names. A place that was not
given back, because its process was killed, is listed until it expires. Times
are UTC.`

func newHoldersCommand(a *app) *cobra.Command {
	name, timeout := "", 10*time.Second
	cmd := &cobra.Command{
		Use:   "holders [KEY]",
		Short: "List who holds places of a key, or of all",
		Long:  holdersLong,
		Example: lines(
			"pglimit holders nightly",
			"pglimit holders tenant:42 --limiter imports",
			"pglimit holders --output json | jq '.holders[].holder'",
		),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneKey(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 {
				return fmt.Errorf("--timeout is %v: it must be longer than zero", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			pool, err := a.pool(ctx)
			if err != nil {
				return err
			}
			defer pool.Close()
			if len(args) == 0 {
				only := ""
				if cmd.Flags().Changed("limiter") {
					only = name
				}
				return a.printAllHolders(ctx, pool, only)
			}
			places, err := semaphore.New(pool, semaphore.Config{Name: name, Places: 1, Timeout: min(timeout, 30*time.Second)})
			if err != nil {
				return inFlags(err)
			}
			holders, err := places.Peek(ctx, args[0])
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("no answer within --timeout %v", timeout)
			} else if err != nil {
				return inFlags(err)
			}
			return a.printHolders(name, args[0], holders)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&name, "limiter", "cli", "`NAME` of the semaphore: the same key under another name has other places")
	flags.DurationVar(&timeout, "timeout", timeout, "longest `TIME` to wait for an answer, connecting included")
	noFiles(cmd, "limiter", "timeout")
	return cmd
}

type holderJSON struct {
	Limiter   string    `json:"limiter,omitempty"` // and the key: where they are not the same for all
	Key       string    `json:"key,omitempty"`
	Holder    string    `json:"holder"`
	Weight    int64     `json:"weight"`
	Token     int64     `json:"token,string"` // too large for the numbers of many readers
	Since     time.Time `json:"since"`
	ExpiresAt time.Time `json:"expires_at"` // unless it is renewed
}

var holderColumns = []string{"HOLDER", "WEIGHT", "TOKEN", "SINCE", "EXPIRES"}

func (h holderJSON) columns() []string {
	return []string{word(h.Holder), strconv.FormatInt(h.Weight, 10), strconv.FormatInt(h.Token, 10), h.Since.Format(time.DateTime), h.ExpiresAt.Format(time.DateTime)}
}

func (a *app) printHolders(limiter, key string, holders []semaphore.Holder) error {
	out := struct {
		Limiter string       `json:"limiter"`
		Key     string       `json:"key"`
		Holders []holderJSON `json:"holders"` // the oldest first
	}{limiter, key, []holderJSON{}}
	var rows [][]string
	for _, h := range holders {
		held := holderJSON{Holder: h.Name, Weight: h.Weight, Token: h.Token, Since: h.Since.UTC(), ExpiresAt: h.Expires.UTC()}
		out.Holders, rows = append(out.Holders, held), append(rows, held.columns())
	}
	text := fmt.Sprintf("nobody holds a place of %q (limiter %q)\n", key, limiter)
	if len(rows) > 0 {
		text = columns(holderColumns, rows)
	}
	return a.print(out, text)
}

// printAllHolders prints the holders of all keys, of all semaphores or of one.
func (a *app) printAllHolders(ctx context.Context, pool *pgxpool.Pool, only string) error {
	rows, err := pool.Query(ctx, `select limiter, key, holder, weight, token, since, expires_at from pglimit.holders
		where $1::text operator(pg_catalog.=) '' or limiter operator(pg_catalog.=) $1::text order by limiter, key, token`, only)
	if err != nil {
		return postgres.Explain(err)
	}
	out := struct {
		Holders []holderJSON `json:"holders"` // by limiter and key, the oldest first
	}{[]holderJSON{}}
	var cells [][]string
	for rows.Next() {
		var h holderJSON
		if err := rows.Scan(&h.Limiter, &h.Key, &h.Holder, &h.Weight, &h.Token, &h.Since, &h.ExpiresAt); err != nil {
			return err
		}
		h.Since, h.ExpiresAt = h.Since.UTC(), h.ExpiresAt.UTC()
		out.Holders, cells = append(out.Holders, h), append(cells, append([]string{word(h.Limiter), word(h.Key)}, h.columns()...))
	}
	if err := rows.Err(); err != nil {
		return postgres.Explain(err)
	}
	text := "nobody holds a place\n"
	if len(cells) > 0 {
		text = columns(append([]string{"LIMITER", "KEY"}, holderColumns...), cells)
	}
	return a.print(out, text)
}
