package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/semaphore"
)

const holdersLong = `List who holds places of a key, oldest first: of "pglimit run", or of a Go
semaphore, which --limiter names. A place that was not given back, because its
process was killed, is listed until it expires. Times are UTC.`

func newHoldersCommand(a *app) *cobra.Command {
	name, timeout := "", 10*time.Second
	cmd := &cobra.Command{
		Use:   "holders KEY",
		Short: "List who holds places of a key",
		Long:  holdersLong,
		Example: lines(
			"pglimit holders nightly",
			"pglimit holders tenant:42 --limiter imports --output json | jq '.holders[].holder'",
		),
		Args:              oneKey,
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
	Holder    string    `json:"holder"`
	Weight    int64     `json:"weight"`
	Token     int64     `json:"token,string"` // too large for the numbers of many readers
	Since     time.Time `json:"since"`
	ExpiresAt time.Time `json:"expires_at"` // unless it is renewed
}

func (a *app) printHolders(limiter, key string, holders []semaphore.Holder) error {
	out := struct {
		Limiter string       `json:"limiter"`
		Key     string       `json:"key"`
		Holders []holderJSON `json:"holders"` // the oldest first
	}{limiter, key, []holderJSON{}}
	var rows [][]string
	for _, h := range holders {
		since, expires := h.Since.UTC(), h.Expires.UTC()
		out.Holders = append(out.Holders, holderJSON{h.Name, h.Weight, h.Token, since, expires})
		rows = append(rows, []string{word(h.Name), strconv.FormatInt(h.Weight, 10), strconv.FormatInt(h.Token, 10), since.Format(time.DateTime), expires.Format(time.DateTime)})
	}
	text := fmt.Sprintf("nobody holds a place of %q (limiter %q)\n", key, limiter)
	if len(rows) > 0 {
		text = columns([]string{"HOLDER", "WEIGHT", "TOKEN", "SINCE", "EXPIRES"}, rows)
	}
	return a.print(out, text)
}
