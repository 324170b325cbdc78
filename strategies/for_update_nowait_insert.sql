-- Writes the first take of a key, unless somebody else did. Waits for an insert of
-- the same key that is not committed yet.
-- Parameters as in for_update_nowait_update.sql.
insert into $table (key, limiter, debt, at_us, made_us, token_parts, refill_parts, burst)
values ($1::text, $2::text, $3::bigint, $4::bigint, $4, $5::bigint, $6::bigint, $7::bigint)
on conflict do nothing
