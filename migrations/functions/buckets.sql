-- The state, for a person in psql:
--     select * from pglimit.buckets where limiter = 'api' and key = 'user:42';
-- A bucket of a calendar window has no seconds_per_token: all that was taken comes back at full_at.
-- burst and tokens_left are by the rule of pglimit.limits that decides for the key now. Null: none has a limit for it.
-- Each join finds one row at most, so that the planner drops it where neither of these columns is asked for.
-- Sums are numeric, so that no row can make the view fail with an overflow.
create or replace view pglimit.buckets as
with live as not materialized (
    select l.limiter, l.key, coalesce(l.prefix, '') as prefix, l.temporary, n.burst, n.token_ns
    from pglimit.limits l cross join lateral pglimit.limit_numbers(l.limit_text) n
    where l.kind = 'live' and l.enabled and (l.expires_at > statement_timestamp()) is not false
        and not exists (
            select from pglimit.limits o
            where o.kind = 'off' and o.enabled and (o.expires_at > statement_timestamp()) is not false
                and coalesce(o.limiter, l.limiter) = l.limiter)
)
select
    b.strategy, b.limiter, b.key,
    case when b.in_window then case when b.until_ns > b.now_ns then (b.full_ns - b.until_ns)::bigint else 0 end
        else least(9223372036854775807, ceil(greatest(0, b.full_ns - greatest(b.now_ns, b.ahead_ns)) / b.token_ns))::bigint
    end as tokens_owed,
    ceil(b.leased_ns / b.token_ns)::bigint as tokens_leased,
    case when not b.in_window then trim_scale(b.token_ns / 1000000000.0) end as seconds_per_token,
    to_timestamp(b.at_ns / 1000000000.0) as last_taken_at,
    to_timestamp((case when b.in_window then b.until_ns when b.leased_ns > 0 then greatest(b.full_ns, b.until_ns) + b.leased_ns else b.full_ns end - greatest(0, b.ahead_ns - b.now_ns)) / 1000000000.0) as full_at,
    case when b.paused_ns > greatest(b.now_ns, b.at_ns)
        then to_timestamp((b.paused_ns - greatest(0, b.ahead_ns - b.now_ns)) / 1000000000.0) end as paused_until,
    b.burst,
    case
        when b.burst is null then null
        when b.paused_ns > greatest(b.now_ns, b.at_ns) then 0
        when b.paused_ns > b.at_ns and b.live_ns is not null then pglimit.tokens_left(
            pglimit.token_bucket_paused(b.row, b.paused_ns - b.now_ns, b.now_ns, b.live_ns, b.burst * b.live_ns, null),
            b.now_ns, b.burst, b.live_ns)
        when b.token_ns = b.live_ns and b.until_ns is null and b.ahead_ns = 0 -- as a rule, and faster
            then greatest(0, pglimit.tokens_there(b.full_ns::bigint, b.now_ns, b.token_ns, b.burst * b.token_ns))
        else pglimit.tokens_left(b.row, b.now_ns, b.burst, b.live_ns)
    end as tokens_left
from (
    select strategy, t.key, t.limiter, t.token_ns, at_ns, until_ns, paused_ns, now_ns, leased_ns is null and until_ns is not null as in_window,
        case when leased_ns > 0 and until_ns <= now_ns then greatest(full_ns, until_ns)::numeric + leased_ns else full_ns end as full_ns,
        case when leased_ns > 0 and until_ns > now_ns then leased_ns::numeric else 0 end as leased_ns,
        case when at_ns > now_ns + pglimit.step_ns() then at_ns else 0 end as ahead_ns,
        array[full_ns, t.token_ns, at_ns, coalesce(leased_ns, 0), coalesce(until_ns, 0)] as row,
        case when own.key is not null then own.burst else shared.bursts[case when shared.prefixes[1] <> '' then pglimit.longest_prefix(t.key, shared.prefixes) else 1 end] end as burst,
        case when own.key is not null then own.token_ns else shared.tokens_ns[case when shared.prefixes[1] <> '' then pglimit.longest_prefix(t.key, shared.prefixes) else 1 end] end as live_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock
    cross join (
        select 'token_bucket' as strategy, key, limiter, full_ns, token_ns, at_ns, leased_ns, until_ns, paused_ns from pglimit.token_bucket
        union all
        select 'upsert', key, limiter, full_ns, token_ns, at_ns, null, null, null from pglimit.upsert
        union all
        select 'for_update_nowait', key, limiter, full_ns, token_ns, at_ns, null, null, null from pglimit.for_update_nowait
    ) t
    left join (
        select limiter, key,
            (array_agg(burst order by temporary desc))[1] as burst, (array_agg(token_ns order by temporary desc))[1] as token_ns
        from live where key is not null group by limiter, key
    ) own on own.limiter = t.limiter and own.key = t.key
    left join (
        select limiter, array_agg(prefix order by length(prefix) desc, temporary desc) as prefixes,
            array_agg(burst order by length(prefix) desc, temporary desc) as bursts,
            array_agg(token_ns order by length(prefix) desc, temporary desc) as tokens_ns
        from live where key is null group by limiter
    ) shared on shared.limiter = t.limiter
) b;
comment on view pglimit.buckets is 'One row per bucket that was taken from and not swept since; a bucket without a row is full. exclusion_range has its own: pglimit.ranges';
