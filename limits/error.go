package limits

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrNoRule means that the rule to set or delete is invalid. The error says why.
var ErrNoRule = errors.New("limits: that is no rule")

// violated maps each constraint of the table to what a rule must be.
var violated = map[string]string{
	"a_key_or_a_prefix":             "it is for a key or for a prefix, not for both",
	"off_is_for_all_keys":           "the action off is for all keys: leave key and prefix out",
	"only_off_is_for_all_limiters":  "it needs a limiter: only the action off can be for all",
	"a_limit_if_the_action_has_one": "the actions enforce and observe need a limit, such as 100/1m, and places needs a number, such as 5; allow, deny and off have none",
	"places_are_a_whole_number":     "the number of places is a whole number such as 5, from 1 to 1000000000000000",
	"observed_names_fit":            "a limiter whose name has more than 117 bytes cannot be observed",
	"limits_action_check":           `the action is one of enforce, observe, allow, deny, off, places`,
	"limits_prefix_check":           "a prefix has 1 to 1024 bytes",
	"limits_note_check":             "it needs a note, of at most 1000 characters, which says why",
	"limits_expires_at_check":       "it expires in 1970 to 2261, or never",
}

// explain says what an error means and what to do.
func explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case postgres.InsufficientPrivilege:
		return fmt.Errorf("%w: \"pglimit migrate grants ROLE --for limits\" prints what it needs: %w", rate.ErrPermission, err)
	case "23514", "22023":
		why := strings.TrimPrefix(pg.Message, "pglimit: ")
		if must := violated[pg.ConstraintName]; must != "" {
			if number, _, is := strings.Cut(why, ": new row for relation"); is { // one of a list
				must = number + ": " + must
			}
			why = must
		}
		return fmt.Errorf("%w: %s (SQLSTATE %s)", ErrNoRule, why, pg.Code)
	}
	return postgres.ExplainStep(err)
}
