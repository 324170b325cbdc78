-- Returns how many tokens a bucket has, as of now_ns, at the price token_ns of a token and
-- window_ns of a burst.
create or replace function pglimit.token_bucket_there(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, pglimit.token_bucket_free_ns(b, now_ns, token_ns, window_ns)) / token_ns;
