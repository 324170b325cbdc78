// Package semaphore limits how much work for a key runs at once, in all processes together.
//
//	jobs, err := semaphore.New(pool, semaphore.Config{Name: "jobs", Places: 5})
//	permit, err := jobs.Acquire(ctx, tenant) // waits in line for one of five places
//	defer permit.Release(ctx)
//	work(permit.Context()) // which ends if the permit is lost
//
// A permit is held until it is released, and renewed after each third of Config.TTL. So the place of a crashed process
// is free again after one TTL, by the database's clock. It keeps no session state: a PgBouncer in transaction mode may
// be in between.
//
// What happens when:
//
//   - A permit is released twice: the second call does nothing, and returns what the first did.
//   - A permit is lost, because it could not be renewed for a TTL (Postgres did not answer, or this process was
//     frozen), or because a renewal says that it has expired: Permit.Context ends with the cause ErrLost, before the
//     place is given away. Only if the database's clock steps forward can it end up to a third of the TTL later.
//   - A permit is released after it was lost: the error is ErrLost. The new holder keeps the place.
//   - The process is frozen and resumed (SIGSTOP, a garbage collector, a paused container): as soon as it runs again,
//     Permit.Err and Permit.Context say that the permit is lost. The Token must stop what it writes before it has
//     noticed.
//   - The machine is suspended, and its monotonic clock with it: the next renewal notices, at most a third of the TTL
//     after it has resumed.
//   - Places is lowered below what is held: nobody loses a permit, and nobody gets one until fewer are held. While two
//     settings are in use, each caller uses its own. With Config.FromTable, a change applies to every call that begins
//     after its commit.
//   - The database's clock steps back: permits last as long as they did before the step. It steps forward: they expire
//     earlier by the step, and others may have their places.
//   - The server crashes: permits are kept, because acquiring and renewing wait for the disk. After a failover to a
//     server that lacks the last transactions, those permits are forgotten; the next renewal says so.
//
// A permit is a lease: no lock can stop a process that does not know yet that it has lost it. Permit.Token only grows
// for a key. Send it along with what you write, and reject writes with a smaller token than the last.
package semaphore
