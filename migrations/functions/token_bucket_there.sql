-- Returns how many tokens a bucket has, as of now_ns, at the price token_ns of a token and
-- window_ns of a burst. Without a row (b is null) the bucket is full. A lease of more than window_ns
-- counts as window_ns, which denies too, and no sum overflows.
create or replace function pglimit.token_bucket_there(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, window_ns
    - greatest(0, pglimit.token_bucket_full_ns(b, now_ns, token_ns) - now_ns)
    - least(window_ns, coalesce(pglimit.token_bucket_leased_ns(b, now_ns, token_ns), 0))) / token_ns;
