-- Makes a permit last for ttl from now, but never shorter than it did. Returns false if the holder has none: it has
-- expired, or was released. Locks the row until the transaction ends if it returns true.
create or replace function pglimit.renew(
    limiter text, key text, holder text, ttl interval default '30 seconds', out renewed boolean
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := renew.key; -- whatever the caller's collation is
    ttl_ns constant bigint := extract(epoch from renew.ttl) * 1000000000;
    now_ns bigint;
    seen pglimit.permits;
begin
    if (ttl_ns between 100000000 and 86400000000000) is not true then
        raise exception 'pglimit: ttl is %: it must be at least 100 ms and at most a day', ttl
            using errcode = 'invalid_parameter_value';
    end if;
    for try in 1..5 loop
        now_ns := pglimit.clock_ns();
        update pglimit.permits p
        set until_ns[array_position(p.holders, renew.holder)]
                = greatest(now_ns + ttl_ns, p.until_ns[array_position(p.holders, renew.holder)]),
            at_ns = greatest(p.at_ns, now_ns), forget_ns = greatest(p.forget_ns, now_ns + ttl_ns + 3600000000000)
        where p.key = _key and p.limiter = renew.limiter collate "C" and renew.holder collate "C" = any (p.holders)
            and p.until_ns[array_position(p.holders, renew.holder)] > now_ns and p.at_ns <= now_ns + pglimit.step_ns()
            and pglimit.clock_ns() - now_ns between -pglimit.step_ns() and pglimit.late_ns(); -- checked again after a wait
        renewed := found;
        if renewed then
            return;
        end if;
        select p.* into seen from pglimit.permits p where p.key = _key and p.limiter = renew.limiter collate "C";
        now_ns := pglimit.clock_ns();
        if seen.key is null or renew.holder collate "C" = any (seen.holders) is not true
            or seen.at_ns <= now_ns + pglimit.step_ns()
                and seen.until_ns[array_position(seen.holders, renew.holder)] <= now_ns then
            return;
        end if;
        perform pglimit.permits_settle(renew.key, renew.limiter);
    end loop;
    raise exception 'pglimit: had to wait for other calls'
        using errcode = 'serialization_failure', hint = 'Nothing was changed. Ask again.';
end
$$;
