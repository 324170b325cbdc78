-- Returns whether a row was written before the clock stepped back. b: as for token_bucket_read. The end of a calendar
-- window stays where it is if the clock moves by less than a day, so such a row is right until then.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_ahead(b bigint[], now_ns bigint) returns boolean
language sql immutable parallel safe
return b[3] > now_ns + case when b[4] = 0 and b[5] > 0 then pglimit.window_step_ns() else pglimit.step_ns() end;
