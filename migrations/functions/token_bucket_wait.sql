-- Waits until each of the rows was free for a moment, one after another, and holds none of them while it waits for
-- the next. If patient is false, it waits 5 ms for each, and changes lock_timeout until the transaction ends. If it
-- is true, it fails with SQLSTATE 55P03 where the role's lock_timeout ends the wait. Changes no row.
--
-- _keys, _limiters: as for token_bucket_take_many. Returns the numbers of the buckets for whose rows, there or in
-- the making, 5 ms were not enough.
create or replace function pglimit.token_bucket_wait(_keys text[], _limiters text[], patient boolean) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    held bigint[] := '{}';
begin
    if not patient then
        perform pg_catalog.set_config('lock_timeout', '5ms', true);
    end if;
    for i in 1 .. cardinality(_keys) loop
        begin
            perform pglimit.token_bucket_lock(_keys[i], coalesce(_limiters[i], _limiters[1]), 1);
            raise exception using errcode = 'PGLIM'; -- which undoes the lock, or the insert
        exception
            when sqlstate 'PGLIM' then null;
            when lock_not_available then
                if patient then -- the role has a lock_timeout
                    raise;
                end if;
                held := held || i::bigint;
        end;
    end loop;
    return held;
end
$$;
