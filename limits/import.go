package limits

import (
	"context"
	"encoding/json"
	"time"
)

// Change of a rule.
type Change struct {
	Before *Rule `json:"before"` // nil: there was none
	After  *Rule `json:"after"`  // nil: it was deleted
}

// ImportConfig says how [Table.Import] works.
type ImportConfig struct {
	// Prune deletes the rules that are not in the list.
	Prune bool

	// Note says why. It applies to rules without their own Note, and, with Prune, to those that are deleted.
	Note string

	// By is who imports. Empty: the connected role. By of the rules is ignored.
	By string

	// DryRun changes nothing, and returns what would change.
	DryRun bool
}

// Import sets all of the rules, or, after an error, none. No two may have the same kind and keys. It returns the
// changes: first what was deleted, then what was set, in the order of the list. Rules that are already in the table are
// neither changed nor recorded again. The error for an invalid rule has its number, counted from 1.
func (t *Table) Import(ctx context.Context, rules []Rule, config ImportConfig) ([]Change, error) {
	rows := make([]row, len(rules))
	for i := range rules {
		rows[i] = row{Rule: &rules[i], Enabled: !rules[i].Disabled}
	}
	asked, err := json.Marshal(rows)
	if err != nil {
		return nil, err
	}
	var answer string
	err = t.row(ctx, "select pglimit.set_limits($1::jsonb, prune => $2::boolean, note => $3::text, by => $4::text, dry_run => $5::boolean)::text",
		[]any{string(asked), config.Prune, null(config.Note), null(config.By), config.DryRun}, &answer)
	if err != nil {
		return nil, err
	}
	var changed []changed
	err = json.Unmarshal([]byte(answer), &changed)
	all := make([]Change, len(changed))
	for i, c := range changed {
		all[i] = c.change()
	}
	return all, err
}

// Entry of the history.
type Entry struct {
	Change
	ID   int64     `json:"id"`   // grows with every change
	At   time.Time `json:"at"`   // by the database's clock
	By   string    `json:"by"`   // who said to have done it
	Role string    `json:"role"` // who was connected
	Note string    `json:"note"` // why; "(no reason given)" if a plain statement did not say
}

// History returns the last n changes, latest first: of the limiter's rules that affect the key (its own, those for its
// prefixes and for all keys); of all rules of the limiter, if key is empty; of all rules, if both are. A rule that
// switches off all limiters is always included.
func (t *Table) History(ctx context.Context, limiter, key string, n int64) ([]Entry, error) {
	var answer string
	err := t.row(ctx, "select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(h.*)), '[]')::text from pglimit.limit_history($1::text, $2::text, $3::bigint) h",
		[]any{null(limiter), null(key), n}, &answer)
	if err != nil {
		return nil, err
	}
	var rows []struct {
		ID   int64     `json:"id"`
		At   time.Time `json:"at"`
		By   string    `json:"by"`
		Role string    `json:"role"`
		Note string    `json:"note"`
		changed
	}
	if err := json.Unmarshal([]byte(answer), &rows); err != nil {
		return nil, err
	}
	entries := make([]Entry, len(rows))
	for i, r := range rows {
		entries[i] = Entry{r.change(), r.ID, r.At.UTC(), r.By, r.Role, r.Note}
	}
	return entries, nil
}

// changed is a Change in JSON.
type changed struct {
	Before *row `json:"before"`
	After  *row `json:"after"`
}

func (c changed) change() Change { return Change{c.Before.rule(), c.After.rule()} }
