-- The last migration of the release that these functions are of. A program of an older release, which finds a higher one than its own,
-- does not ask whether the functions are as it knows them.
create or replace function pglimit.schema_version() returns bigint
language sql immutable parallel safe set search_path = '' as $$ select 3 $$;
