package postgres

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"
)

// Over database/sql, arrays go and come as text, because not every driver knows arrays. pgx converts
// them: typeMaps are for one conversion at a time each.
var typeMaps = sync.Pool{New: func() any { return pgtype.NewMap() }}

// arrayOID is the array type in Postgres of a slice, or of what a pointer to a slice points to.
func arrayOID(types *pgtype.Map, value any) (oid uint32, isArray bool) {
	known, ok := types.TypeForValue(value)
	if !ok {
		return 0, false
	}
	_, isArray = known.Codec.(*pgtype.ArrayCodec)
	return known.OID, isArray
}

// sqlArgs returns the arguments with arrays as text. A nil slice is null.
func sqlArgs(args []any) ([]any, error) {
	types := typeMaps.Get().(*pgtype.Map) //nolint:forcetypeassert // see New
	defer typeMaps.Put(types)
	converted := make([]any, len(args))
	for i, arg := range args {
		oid, isArray := arrayOID(types, arg)
		if !isArray {
			converted[i] = arg
			continue
		}
		text, err := types.Encode(oid, pgtype.TextFormatCode, arg, nil)
		if err != nil {
			return nil, fmt.Errorf("pglimit: argument %d: %w", i+1, err)
		}
		if text != nil {
			converted[i] = string(text)
		}
	}
	return converted, nil
}

// sqlTargets returns new variables of the types that into points to, and what database/sql scans
// them by. A nil stays nil, and its column is skipped.
func sqlTargets(into []any) (found, targets []any) {
	types := typeMaps.Get().(*pgtype.Map) //nolint:forcetypeassert // see New
	defer typeMaps.Put(types)
	found, targets = make([]any, len(into)), make([]any, len(into))
	for i := range into {
		if into[i] == nil {
			targets[i] = new(any)
			continue
		}
		found[i] = reflect.New(reflect.TypeOf(into[i]).Elem()).Interface()
		targets[i] = found[i]
		if _, isArray := arrayOID(types, found[i]); isArray {
			targets[i] = array{found[i]}
		}
	}
	return found, targets
}

// array is a sql.Scanner of an array, of any dimensions, into a pointer to a slice: one row after
// another, as pgx does.
type array struct{ into any }

func (a array) Scan(value any) error {
	types := typeMaps.Get().(*pgtype.Map) //nolint:forcetypeassert // see New
	defer typeMaps.Put(types)
	if err := types.SQLScanner(a.into).Scan(value); err != nil {
		return fmt.Errorf("pglimit: array %s: %w", value, err)
	}
	return nil
}
