-- A write that comes more than 100 ms behind its clock was kept waiting, and is decided again: its date is too early, so
-- what comes back meanwhile would come on top of it. That is longer than an impatient call of Go's waits for a row
-- (about 20 ms), and than a call for a thousand keys takes on a busy processor. (token_bucket_take dates its grant
-- behind the lock already after step_ns: that takes no other call.)
create or replace function pglimit.late_ns() returns bigint
language sql immutable parallel safe return 100000000::bigint;
