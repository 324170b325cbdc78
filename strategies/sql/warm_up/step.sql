-- Corrects a row that is ahead of the clock because the clock has stepped back: what is paid for, and how warm it is, is
-- now as it was when the row was written.
-- $1 key, $2 limiter.
-- Locks the row, and reads the clock after that: compared with an older time, a row that
-- another call has just written would seem to be ahead.
with
held as materialized (
    select b.at_ns from $table b where b.key = $1::text and b.limiter = $2::text for no key update
),
read as materialized (
    select c.now_ns, held.at_ns - c.now_ns as back_ns
    from held cross join lateral (select pglimit.clock_ns() as now_ns where held.at_ns > 0::bigint offset 0) c
)
update $table b
set full_ns = greatest(1::bigint, b.full_ns - r.back_ns), free_ns = greatest(1::bigint, b.free_ns - r.back_ns),
    due_ns = greatest(1::bigint, b.due_ns - r.back_ns), at_ns = r.now_ns
from read r
where b.key = $1::text and b.limiter = $2::text and r.back_ns > pglimit.step_ns()
