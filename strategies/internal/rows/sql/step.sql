-- Moves a row that is ahead of the clock, because the clock has stepped back: what was owed
-- when it was written is owed now.
-- $1 key, $2 limiter.
-- Locks the row. The clock is read for the row, behind its lock: compared with an older time,
-- a row that somebody has just written would be ahead.
update $table b
set full_ns = greatest(1::bigint, b.full_ns - (b.at_ns - pglimit.clock_ns())), at_ns = pglimit.clock_ns()
where b.key = $1::text and b.limiter = $2::text and b.at_ns > pglimit.clock_ns() + pglimit.step_ns()
