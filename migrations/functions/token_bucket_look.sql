-- Looks at a bucket and at the block of its key. Locks nothing. The parameters: as for token_bucket_take.
--
-- taken: the seven numbers of token_bucket_take, of which none were granted. blocked_ns: for how long the key is
-- blocked (0: it is not).
create or replace function pglimit.token_bucket_look(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, _calendar text default null, out taken bigint[], out blocked_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off
set row_security = off as $$ -- an error is better than rows that are not seen
begin
    taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, null, _calendar);
    taken[2] := 0;
    blocked_ns := coalesce((
        select pglimit.token_bucket_blocked_ns(t.until_ns, t.at_ns, taken[1])
        from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter), 0);
end
$$;
