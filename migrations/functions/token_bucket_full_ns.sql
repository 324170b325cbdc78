-- When a bucket is full again, leases that are out apart, as its row reads at now_ns to
-- somebody who pays token_ns for a token. No row (null): it is full.
--
-- A single expression, so that the planner puts it into the statement.
create or replace function pglimit.token_bucket_full_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case
    when b.token_ns = token_ns and b.leased_ns is null then b.full_ns
    when b.key is null then 0
    else (pglimit.token_bucket_read(b, now_ns, token_ns)).full_ns
end;
