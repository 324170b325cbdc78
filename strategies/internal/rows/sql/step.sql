-- Corrects a row that is ahead of the clock because the clock has stepped back: the bucket
-- owes now what it owed when the row was written.
-- $1 key, $2 limiter.
-- Locks the row, and reads the clock after that: compared with an older time, a row that
-- another call has just written would seem to be ahead.
update $table b
set full_ns = greatest(1::bigint, b.full_ns - (b.at_ns - pglimit.clock_ns())), at_ns = pglimit.clock_ns()
where b.key = $1::text and b.limiter = $2::text and b.at_ns > pglimit.clock_ns() + pglimit.step_ns()
