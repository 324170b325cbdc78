// Package semaphore lets at most so many pieces of work for a key run at once, in all
// processes together.
//
//	jobs, err := semaphore.New(pool, semaphore.Config{Name: "jobs", Places: 5})
//	permit, err := jobs.Acquire(ctx, tenant) // waits in line for one of five places
//	defer permit.Release(ctx)
//	work(permit.Context()) // which ends if the permit is lost
//
// A permit is held until it is released. Meanwhile it is renewed at a third of its
// Config.TTL, so that the place of a process that has crashed comes back: after one TTL,
// by the database's clock. It needs the migration permits, and no session state: a
// PgBouncer in transaction mode may be in between.
//
// What happens when:
//
//   - Released twice: the second time does nothing, and returns what the first did.
//   - Lost: the permit could not be renewed for a TTL, because Postgres did not answer or
//     this process was frozen; or a renewal says that it has expired. Permit.Context ends,
//     with the cause ErrLost, before the place is given away. Only if the database's clock
//     steps forward it may end up to a third of the TTL later.
//   - Released late, after it was lost: the error is ErrLost. Who has the place now keeps it.
//   - Frozen and thawed (SIGSTOP, a garbage collector, a paused container): as soon as it
//     runs again Permit.Err and Permit.Context say that the permit is lost. What it writes
//     between the thaw and that is for the Token to stop.
//   - The machine is suspended, and its monotonic clock with it: the next renewal says so, in at
//     most a third of the TTL after it has woken.
//   - Places lowered below what is held: nobody loses a permit, and nobody gets one until
//     fewer are held. While two settings are in use, each caller goes by its own. With
//     Config.FromTable, a change holds for every call that begins after its commit.
//   - The database's clock steps back: permits last as long as they did before the step.
//     It steps forward: they expire earlier by the step, and others may have their places.
//   - The server crashes: permits are kept, because acquiring and renewing wait for the
//     disk. After a failover to a server that lacks the last transactions, those permits
//     are forgotten there: the next renewal says so.
//
// A permit is a lease: no lock can stop a process that does not know yet that it has
// lost it. Permit.Token only grows for a key. Send it along with what you write, and
// refuse there what comes with a smaller token than was seen before.
package semaphore
