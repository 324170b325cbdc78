-- Locks the row or fails at once, but only if a plain read shows that something could be
-- granted, or that the row is ahead of the clock and has to be moved: a denial locks nothing.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window less a unit of tokens.
-- Returns the row as last committed; no row if there is none, or nothing to grant.
select b.full_ns, b.token_ns, b.at_ns
from $table b cross join (select pglimit.clock_ns() as now_ns offset 0) clock
where b.key = $1::text and b.limiter = $2::text and (
    b.at_ns > clock.now_ns + pglimit.step_ns()
    or greatest(pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, clock.now_ns, $3::bigint), clock.now_ns) <= clock.now_ns + $4::bigint
)
for no key update of b nowait
