// Package cleanup removes the rows of buckets that are full again, so that the tables stay as small as the number of
// keys in use. Without it decisions stay the same, because a row that could be removed decides like no row at all.
//
// Every instance of a service may start a [Cleaner]; one of them does each run:
//
//	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{})
//	err = cleaner.Start(ctx)
//	defer cleaner.Stop(context.Background())
//
// A run walks each strategy's table in small batches. Each is a short transaction that skips locked rows, and takes
// continue meanwhile. A row is removed when its bucket has been full for a minute, so no decision changes, unless the
// database's clock steps back by more than that. A run that is interrupted leaves nothing half done: the next one
// starts over.
//
// It also removes what Config.Top of package pglimit counted more than an hour ago.
//
// A [Locker] decides in Postgres which instance runs. It is a gocron.Locker, and works for any other gocron job too.
package cleanup
