-- Writes into the row of a key what it means now: after a step back of the clock all times move by it, and permits that
-- have expired go. Locks the row.
create or replace function pglimit.permits_settle(_key text, _limiter text) returns void
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
declare
    now_ns bigint;
    back_ns bigint;
begin
    select p.at_ns into back_ns from pglimit.permits p where p.key = _key and p.limiter = _limiter for update;
    now_ns := pglimit.clock_ns(); -- behind the lock
    back_ns := case when back_ns > now_ns + pglimit.step_ns() then back_ns - now_ns else 0 end;
    update pglimit.permits p
    set (holders, tokens, weights, since_ns, until_ns, held) = (
            select coalesce(array_agg(h.holder), '{}'), coalesce(array_agg(h.token), '{}'),
                coalesce(array_agg(h.weight), '{}'), coalesce(array_agg(h.since_ns - back_ns), '{}'),
                coalesce(array_agg(h.until_ns - back_ns), '{}'), coalesce(sum(h.weight), 0)
            from unnest(p.holders, p.tokens, p.weights, p.since_ns, p.until_ns)
                h (holder, token, weight, since_ns, until_ns)
            where h.until_ns - back_ns > now_ns),
        at_ns = p.at_ns - back_ns, forget_ns = p.forget_ns - back_ns
    where p.key = _key and p.limiter = _limiter;
end
$$;
