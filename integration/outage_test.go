//go:build unix

package integration

import "testing"

// Postgres goes away in each way there is, and comes back.
func TestOutages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"down", serverDown},
		{"frozen", serverFrozen},
		{"full", serverFull},
		{"restarted", serverRestarted},
		{"frozen and down, by database/sql", sqlServerFrozenAndDown},
		{"a locked row is none", lockedRowIsNoOutage},
		{"callers who leave are none", callersWhoLeaveAreNoOutage},
	} {
		t.Run(test.name, test.run)
	}
}
