-- Returns when a bucket is full again, not counting leases that are out, as of now_ns and at the
-- price token_ns of a token. Null without a row (b is null): the bucket is full.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_full_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case
    when b.token_ns <> token_ns or b.leased_ns is not null then (pglimit.token_bucket_read(b, now_ns, token_ns)).full_ns
    else b.full_ns
end;
