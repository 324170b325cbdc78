-- Writes the first take of a key, unless somebody else did. Waits for an insert of the same
-- key that is not committed yet; fails with SQLSTATE 40001 if that took long and came to
-- nothing, because the take would be dated too early.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the tokens that are taken.
-- Returns the time and the row; no row if somebody else was sooner.
insert into $table as b (key, limiter, full_ns, token_ns, at_ns)
select $1::text, $2::text, clock.now_ns + $4::bigint, $3::bigint, clock.now_ns
from (select pglimit.clock_ns() as now_ns offset 0) clock
on conflict do nothing
returning b.at_ns, b.full_ns, b.token_ns, b.at_ns, pglimit.in_time(b.at_ns)
