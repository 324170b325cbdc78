-- The longest window of a limit: some 203 years. With the time since 1970, it fits a bigint.
create or replace function pglimit.max_window_ns() returns bigint
language sql immutable parallel safe return 6400000000000000000;
