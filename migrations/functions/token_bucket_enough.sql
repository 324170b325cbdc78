-- Returns whether a row has ask tokens, as of now_ns, at the price token_ns of a token and window_ns
-- of a burst. False says only that the row needs a closer look: it may lack tokens, or have a lease or
-- another price. The caller must check that ask is not more than
-- a burst.
--
-- A single expression, so that the planner inlines it: a short one, because each statement prepares
-- its expressions whenever it runs.
create or replace function pglimit.token_bucket_enough(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint, ask bigint) returns boolean
language sql immutable parallel safe
return ask <= (now_ns + window_ns - b.full_ns) / token_ns and b.token_ns = token_ns and b.leased_ns is null;
