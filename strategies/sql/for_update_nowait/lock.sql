-- Locks the row, or fails at once if another call holds it (SQLSTATE 55P03). It locks only if a
-- plain read shows that a unit of tokens is there, or that the row is ahead of the clock and must
-- be corrected: other denials lock nothing.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window minus one unit of tokens.
-- Returns the row as last committed, or nothing if it locked none.
select b.full_ns, b.token_ns, b.at_ns
from $table b cross join (select pglimit.clock_ns() as now_ns offset 0) clock
where b.key = $1::text and b.limiter = $2::text and (
    b.at_ns > clock.now_ns + pglimit.step_ns()
    or greatest(pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, clock.now_ns, $3::bigint), clock.now_ns) <= clock.now_ns + $4::bigint
)
for no key update of b nowait
