-- Returns how many nanoseconds of the window leases set aside, as of now_ns and at the price
-- token_ns of a token. Null: nothing is leased.
create or replace function pglimit.token_bucket_leased_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case when b.leased_ns is not null then (pglimit.token_bucket_read(b, now_ns, token_ns)).leased_ns end;
