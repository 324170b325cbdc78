package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pglimit/ratelimit/migrations"
)

// What changes the schema says of a standby that it is one, and what to do.
func TestMigrationsNameAStandby(t *testing.T) {
	t.Parallel()
	p := newPatient(t, nil)
	must(t, os.WriteFile(filepath.Join(p.data, "standby.signal"), nil, 0o644))
	must(t, p.Restart(t.Context()))
	pool := newPool(t, p.URL(""), 2)
	for name, change := range map[string]func() error{
		"storage": func() error { return migrations.SetStorage(t.Context(), pool, migrations.Unlogged) },
		"up":      func() error { return migrations.Up(t.Context(), pool) },
		"down":    func() error { return migrations.Down(t.Context(), pool) },
	} {
		t.Run(name, func(t *testing.T) {
			wantLine(t, change(), "this server is a standby", "target_session_attrs=read-write")
		})
	}
	wantApplied(t, pool, "1 3 4")
	if _, err := migrations.ReadStorage(t.Context(), pool); err != nil {
		t.Error(err)
	}
}
