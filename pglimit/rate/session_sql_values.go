package rate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sqlArgs returns the arguments with arrays as text, because not every driver knows arrays.
// A nil slice is null.
func sqlArgs(args []any) []any {
	converted := make([]any, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case []int64:
			converted[i] = arrayLiteral(arg, func(n int64) string { return strconv.FormatInt(n, 10) })
		case []string:
			converted[i] = arrayLiteral(arg, quoteElement)
		default:
			converted[i] = arg
		}
	}
	return converted
}

// arrayLiteral returns an array as Postgres reads it: {1,2}. nil if elements is nil.
func arrayLiteral[T any](elements []T, text func(T) string) any {
	if elements == nil {
		return nil
	}
	texts := make([]string, len(elements))
	for i, element := range elements {
		texts[i] = text(element)
	}
	return "{" + strings.Join(texts, ",") + "}"
}

var elementEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func quoteElement(s string) string { return `"` + elementEscapes.Replace(s) + `"` }

// sqlTarget returns a new variable to scan what belongs into into.
func sqlTarget(into any) any {
	switch into.(type) {
	case nil:
		return new(any)
	case *[]int64:
		return new(int64s)
	case *[]string:
		return new(texts)
	case *[]bool:
		return new(bools)
	}
	return reflect.New(reflect.TypeOf(into).Elem()).Interface()
}

// int64s, texts and bools are scanned from an array, of any dimensions, in one row after another, as
// pgx does. null is nil.
type (
	int64s []int64
	texts  []string
	bools  []bool
)

var (
	_ sql.Scanner = (*int64s)(nil)
	_ sql.Scanner = (*texts)(nil)
	_ sql.Scanner = (*bools)(nil)
)

// Scan implements sql.Scanner.
func (a *int64s) Scan(value any) (err error) {
	*a, err = scanArray(value, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) })
	return err
}

// Scan implements sql.Scanner.
func (a *texts) Scan(value any) (err error) {
	*a, err = scanArray(value, func(text string) (string, error) { return text, nil })
	return err
}

// Scan implements sql.Scanner.
func (a *bools) Scan(value any) (err error) {
	*a, err = scanArray(value, strconv.ParseBool) // t and f
	return err
}

func scanArray[T any](value any, parse func(string) (T, error)) ([]T, error) {
	var literal string
	switch value := value.(type) {
	case nil:
		return nil, nil
	case string:
		literal = value
	case []byte:
		literal = string(value)
	default:
		return nil, fmt.Errorf("pglimit: an array comes as %T, want text", value)
	}
	elements, ok := arrayElements(literal)
	if !ok {
		return nil, fmt.Errorf("pglimit: array %s is not as Postgres writes it, or has bounds or a null", literal)
	}
	array := make([]T, len(elements))
	for i := range elements {
		var err error
		if array[i], err = parse(elements[i]); err != nil {
			return nil, fmt.Errorf("pglimit: array %s: %w", literal, err)
		}
	}
	return array, nil
}

// arrayElements returns the elements of an array as Postgres writes it: {1,2}, {{1,2},{3,4}},
// {a,"b c","\"\\"}. ok is false for anything else, for a null, and for bounds: [0:1]={1,2}.
func arrayElements(literal string) (elements []string, ok bool) {
	if !strings.HasPrefix(literal, "{") || !strings.HasSuffix(literal, "}") {
		return nil, false
	}
	for rest := literal; rest != ""; {
		switch rest[0] {
		case '{', '}', ',':
			rest = rest[1:]
		case '"':
			element, behind, ended := unquoted(rest[1:])
			if !ended {
				return nil, false
			}
			elements, rest = append(elements, element), behind
		default:
			end := strings.IndexAny(rest, ",}") // it ends with one
			if rest[:end] == "NULL" {
				return nil, false
			}
			elements, rest = append(elements, rest[:end]), rest[end:]
		}
	}
	return elements, true
}

// unquoted reads an element up to its closing quote, and returns what is behind that.
func unquoted(text string) (element, rest string, ended bool) {
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return plain.String(), text[i+1:], true
		case '\\':
			if i++; i == len(text) {
				return "", "", false
			}
		}
		plain.WriteByte(text[i])
	}
	return "", "", false
}

// sqlError is an error of Postgres's that is not pgx's, such as a *pq.Error, with the same as pgx
// would say it, which the strategies understand.
type sqlError struct {
	error
	pg *pgconn.PgError
}

func (e *sqlError) Unwrap() []error { return []error{e.pg, e.error} }

const queryCanceled = "57014" // SQLSTATE

// sqlErr returns an error of a driver's, or of database/sql's, in pgx's terms, with the original
// in the chain.
func sqlErr(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	var theirs interface { // of *pq.Error, which this package does not import
		error
		SQLState() string
		Get(field byte) string
	}
	if !errors.As(err, &pg) && errors.As(err, &theirs) {
		pg = &pgconn.PgError{
			Code: theirs.SQLState(), Severity: theirs.Get('S'), SeverityUnlocalized: theirs.Get('S'),
			Message: theirs.Get('M'), Detail: theirs.Get('D'), Hint: theirs.Get('H'),
		}
		err = &sqlError{err, pg}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && (pg == nil || pg.Code == queryCanceled):
		return fmt.Errorf("%w: %v", ctx.Err(), err) //nolint:errorlint // it is the caller who cancelled, not Postgres
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, err)
	}
	return err
}
