-- Does nothing: all that it returns is null. On distributed tables, several buckets are for token_bucket_take_shard, and a
-- group for token_bucket_take, bucket by bucket in one transaction.
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean, patience text, _calendars text[] default null,
    out usual bigint[], out rest bigint[], out grants bigint[]
)
language plpgsql set search_path = '' as $$
begin
end
$$;
