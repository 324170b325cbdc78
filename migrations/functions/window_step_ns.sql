-- The end of a calendar window stays where it is, if the clock steps back by no more than this: a day.
create or replace function pglimit.window_step_ns() returns bigint
language sql immutable parallel safe return 86400000000000;
