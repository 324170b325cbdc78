-- Returns how many follow the rules of a limiter (null: of any) within two seconds. instances: live ones. servers: live
-- instances of "pglimit serve", which decide for each limiter of the table and have the name "(table)". known: the
-- names of all limiters that have a live instance, or a rule.
create or replace function pglimit.limit_followers(
    limiter text, out instances bigint, out servers bigint, out known text[]
)
language sql stable set search_path = '' as $$
    select count(l.id) filter (where l.limiter <> '(table)' and ($1 is null or l.limiter = $1)),
        count(l.id) filter (where l.limiter = '(table)'),
        coalesce(array_agg(distinct l.limiter) filter (where l.limiter <> '(table)'), '{}')
    from (
        select i.limiter, i.id from pglimit.instances i where i.until_ns > pglimit.clock_ns()
        union all select r.limiter, null from pglimit.limits r where r.limiter is not null and r.kind <> 'places'
    ) l
$$;
