// Package cleanup removes the rows of buckets that are full again, so that the
// tables stay as small as the number of keys in use. Without it nothing is wrong
// but their size: a row that could go says the same as no row.
//
// Every instance of a service may start a [Cleaner]; of all of them, one does
// each run:
//
//	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{})
//	err = cleaner.Start(ctx)
//	defer cleaner.Stop(context.Background())
//
// A run walks each strategy's table in small batches, each a short transaction
// of its own that passes over locked rows. Takes go on meanwhile. A row goes when
// its bucket has been full for a minute, so no decision changes, unless the
// database's clock steps back by more than that. A run that is cut short, in
// whatever way, leaves nothing half done: the next one starts over.
//
// Who runs is settled in Postgres by a [Locker], which is a gocron.Locker and
// serves any other gocron job as well.
package cleanup
