package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/pglimit"
)

const topLong = `List the keys that are limited most now: requests denied, or granted, in the
last minutes, of one limiter or of all, over all processes that count them.
These are the instances of "pglimit serve", and services with
pglimit.Config.Top.

A number is never too high, and at most a hundredth of a limiter's requests too
low; what processes answer from memory is estimated. It grows some five seconds
late, and the last minutes are up to one more.

Keys may be people: where they are stored as hashes, give the --key to look for
and the secret in a file. Then it says which line it is.`

type topFlags struct {
	by, minutes  string
	limit        int
	key, keyFile string
	timeout      time.Duration
}

func newTopCommand(a *app) *cobra.Command {
	f := topFlags{by: "denied", minutes: "10"}
	cmd := &cobra.Command{
		Use:   "top [LIMITER]",
		Short: "List the keys that are limited most now",
		Long:  topLong,
		Example: lines(
			"pglimit top",
			"pglimit top api --by granted --minutes 60 --limit 5",
			"pglimit top api --key user:42 --hash-key-file /run/secrets/pglimit",
		),
		Args: takes("[LIMITER]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			limiter := ""
			if len(args) == 1 {
				limiter = args[0]
			}
			switch {
			case f.limit < 1:
				return fmt.Errorf("--limit is %d: it must be at least 1", f.limit)
			case f.keyFile != "" && f.key == "":
				return errors.New("--hash-key-file goes with --key, the key to look for")
			}
			return a.top(cmd.Context(), &f, limiter)
		},
	}
	flags := cmd.Flags()
	choiceVar(cmd, flags, &f.by, "by", "sort by this `NUMBER`", "denied", "granted")
	choiceVar(cmd, flags, &f.minutes, "minutes", "the last `MINUTES`", "1", "10", "60")
	flags.IntVar(&f.limit, "limit", 20, "how many `LINES` at most")
	flags.StringVar(&f.key, "key", "", "`KEY` to look for")
	flags.StringVar(&f.keyFile, "hash-key-file", "", "`FILE` with the secret with which keys are hashed")
	timeoutVar(flags, &f.timeout)
	complete(cmd, "hash-key-file", anyFile)
	return cmd
}

// readHashKey reads the secret from a file, without the line's end. Empty: there is none.
func readHashKey(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	secret, err := os.ReadFile(file)
	if secret = bytes.TrimSpace(secret); err == nil && len(secret) < 16 {
		err = fmt.Errorf("%s has a secret of %d bytes: it must have at least 16, such as those of "+
			"\"openssl rand -hex 32\"", file, len(secret))
	}
	if err != nil {
		return nil, fmt.Errorf("--hash-key-file: %w", err)
	}
	return secret, nil
}

// topJSON is the answer.
type topJSON struct {
	Keys  []pglimit.TopKey `json:"keys"`
	Found []foundJSON      `json:"found,omitempty"` // the lines of the key that was looked for, also below the limit
}

type foundJSON struct {
	Line int `json:"line"` // from 1
	pglimit.TopKey
}

func (a *app) top(ctx context.Context, f *topFlags, limiter string) error {
	secret, err := readHashKey(f.keyFile)
	if err != nil {
		return err
	}
	minutes, _ := strconv.Atoi(f.minutes)
	query := pglimit.TopQuery{Limiter: limiter, Granted: f.by == "granted", Minutes: minutes, Limit: f.limit}
	if f.key != "" { // its line may be any
		query.Limit = math.MaxInt32
	}
	var out topJSON
	shown := f.key
	err = a.within(ctx, f.timeout, 0, "", func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		top := pglimit.TopFrom(pool, pglimit.TopConfig{HashKeys: secret})
		shown = top.Shown(f.key)
		out.Keys, err = top.Keys(ctx, query)
		return err
	})
	if err != nil {
		return err
	}
	for i, key := range out.Keys {
		if f.key != "" && key.Key == shown {
			out.Found = append(out.Found, foundJSON{i + 1, key})
		}
	}
	out.Keys = out.Keys[:min(len(out.Keys), f.limit)]
	return a.print(out, out.text(f))
}

func (out topJSON) text(f *topFlags) string {
	if len(out.Keys) == 0 {
		return fmt.Sprintf("nothing was %s in the last minutes, or nobody counts it (see \"pglimit top --help\")\n", f.by)
	}
	var rows [][]string
	row := func(line int, key pglimit.TopKey) {
		cells := []string{strconv.Itoa(line), word(key.Limiter), word(key.Key)}
		for _, n := range []int64{key.Denied1m, key.Denied10m, key.Denied60m, key.Granted1m, key.Granted10m, key.Granted60m} {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		rows = append(rows, cells)
	}
	for i, key := range out.Keys {
		row(i+1, key)
	}
	found := ""
	for _, at := range out.Found {
		if at.Line > len(out.Keys) {
			row(at.Line, at.TopKey)
		}
		found += fmt.Sprintf("%s is line %d\n", word(f.key), at.Line)
	}
	if f.key != "" && found == "" {
		found = word(f.key) + " is none of them\n"
	}
	return columns([]string{"LINE", "LIMITER", "KEY", "DENIED 1m", "10m", "60m", "GRANTED 1m", "10m", "60m"}, rows) + found
}
