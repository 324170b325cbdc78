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
    select c.now_ns, c.at_ns - c.now_ns as back_ns
    from (select held.at_ns, pglimit.clock_ns() as now_ns from held offset 0) c
)
update $table b
set (full_ns, free_ns, due_ns, at_ns) = (
    select greatest(1::bigint, b.full_ns - r.back_ns), greatest(1::bigint, b.free_ns - r.back_ns), greatest(1::bigint, b.due_ns - r.back_ns), r.now_ns
    from read r
)
where b.key = $1::text and b.limiter = $2::text and (select r.back_ns > pglimit.step_ns() from read r)
