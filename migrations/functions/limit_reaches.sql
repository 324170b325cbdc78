-- Returns for how many known buckets, of whatever strategy, a rule for these keys would hold: not those of keys that
-- have a rule of that kind for themselves or for a longer prefix. A null limiter: of all limiters. Of the kind places:
-- how many known keys of the semaphore. Reads the tables of the buckets.
create or replace function pglimit.limit_reaches(
    limiter text, key text default null, prefix text default null, kind text default 'live'
) returns bigint
language plpgsql stable set search_path = '' set row_security = off set jit = off as $$
declare
    view text;
    n bigint;
    reached bigint := 0;
begin
    foreach view in array case kind when 'places' then '{permits}' else '{buckets,ranges}' end::text[] loop
        continue when to_regclass('pglimit.' || view) is null; -- exclusion_range is not migrated
        execute format('
            with b as materialized (
                select b.limiter, b.key from pglimit.%I b
                where ($1 is null or b.limiter = $1) and ($2 is null or b.key = $2)
                    and ($3 is null or starts_with(b.key, $3))
            )
            select count(*) from b
            where $2 is not null or not exists (
                select from pglimit.limits l
                where l.limiter = b.limiter and l.kind = $4
                    and l.enabled and (l.expires_at > clock_timestamp()) is not false
                    and (l.key = b.key or length(l.prefix) > coalesce(length($3), 0) and starts_with(b.key, l.prefix))
            )', view) into n using limiter, key, prefix, kind;
        reached := reached + n;
    end loop;
    return reached;
end
$$;
