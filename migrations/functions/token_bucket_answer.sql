-- Returns what a request with an ID was granted, or nulls if its ID is free.
--
-- If the clock has stepped back since the row was written, the row lasts for ttl_ns from now on:
-- how much of that has passed is not known, so it may last longer, but not for the length of the
-- step. This writes, once. (After a step forward an ID is free too early. Nothing shows that.)
--
-- Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_answer(_key text, _limiter text, _id text, out answer pglimit.token_bucket_answers)
language plpgsql
set search_path = ''
as $$
declare
    now_ns bigint;
begin
    select a.* into answer from pglimit.token_bucket_answers a where a.key = _key and a.limiter = _limiter and a.id = _id;
    now_ns := pglimit.clock_ns();
    if answer.until_ns - answer.ttl_ns > now_ns + pglimit.step_ns() then
        update pglimit.token_bucket_answers a set until_ns = now_ns + a.ttl_ns
        where a.key = _key and a.limiter = _limiter and a.id = _id and a.until_ns - a.ttl_ns > now_ns + pglimit.step_ns();
    elsif answer.until_ns <= now_ns then
        answer := null;
    end if;
end
$$;
