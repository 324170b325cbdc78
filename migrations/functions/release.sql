-- Gives a permit back. Returns false if the holder has none: it was released before, or has expired, and another call
-- has taken it out. Locks the row until the transaction ends if it returns true. relaxed: the commit need not wait for
-- the disk.
create or replace function pglimit.release(
    limiter text, key text, holder text, relaxed boolean default false, out released boolean
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := release.key; -- whatever the caller's collation is
begin
    update pglimit.permits p
    set (holders, tokens, weights, since_ns, until_ns, held) = (
        select p.holders[:i - 1] || p.holders[i + 1:], p.tokens[:i - 1] || p.tokens[i + 1:],
            p.weights[:i - 1] || p.weights[i + 1:], p.since_ns[:i - 1] || p.since_ns[i + 1:],
            p.until_ns[:i - 1] || p.until_ns[i + 1:], p.held - p.weights[i]
        from array_position(p.holders, release.holder) i)
    where p.key = _key and p.limiter = release.limiter collate "C" and release.holder collate "C" = any (p.holders);
    released := found;
    if relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;
