-- Inserts the row of a key for its first take, unless another call inserted it first. Waits for
-- an insert of the same key that is not committed yet. If that takes longer than 100 ms and is
-- rolled back, fails with SQLSTATE 40001, because the take would be dated too early.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of all tokens that are taken.
-- Locks the row that it inserts. Returns the time and the row, or nothing if another call
-- inserted the row first.
insert into $table as b (key, limiter, full_ns, token_ns, at_ns)
select $1::text, $2::text, clock.now_ns + $4::bigint, $3::bigint, clock.now_ns
from (select pglimit.clock_ns() as now_ns offset 0) clock
on conflict do nothing
returning b.at_ns, b.full_ns, b.token_ns, b.at_ns, pglimit.in_time(b.at_ns)
