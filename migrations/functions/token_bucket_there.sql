-- The tokens that a bucket has, as its row reads at now_ns (null: it is full) to somebody who
-- pays token_ns for a token, of which window_ns pays for a burst.
create or replace function pglimit.token_bucket_there(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, window_ns
    - greatest(0, pglimit.token_bucket_full_ns(b, now_ns, token_ns) - now_ns)
    - pglimit.token_bucket_leased_ns(b, now_ns, token_ns)) / token_ns;
