-- Locks the row, or fails at once if another call holds it (SQLSTATE 55P03). It locks only if a
-- plain read shows that a unit of tokens is there, or that the row is ahead of the clock and must
-- be corrected: other denials lock nothing.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window minus one unit of tokens.
-- Returns the row as last committed, or nothing if it locked none.
with
clock as materialized (
    select pglimit.clock_ns() as now_ns
)
select b.full_ns, b.token_ns, b.at_ns
from $table b
where b.key = $1::text and b.limiter = $2::text and (
    b.at_ns > (select clock.now_ns from clock) + pglimit.step_ns()
    or greatest(pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, (select clock.now_ns from clock), $3::bigint), (select clock.now_ns from clock)) <= (select clock.now_ns from clock) + $4::bigint
)
for no key update of b nowait
