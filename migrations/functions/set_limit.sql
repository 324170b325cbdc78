-- Sets the rule for a limiter, or of it for a key or the keys that begin with a prefix:
--
--     select pglimit.set_limit('api', '100/1m burst 20', note => 'default');
--     select pglimit.set_limit('api', '5/s', key => 'user:42', note => 'ticket 7', expires_at => now() + '1 hour');
--     select pglimit.set_limit('api', action => 'deny', prefix => 'bot:', note => 'scraping', by => 'ann');
--     select pglimit.set_limit('imports', '5', action => 'places', note => 'default');
--
-- action: enforce; observe, which counts beside and denies nobody; allow; deny; off, for a limiter, or with a null
-- limiter for all: granted unasked; places, for a semaphore, whose number of places is the limit_text. max_wait: how
-- long callers of Wait may wait, as '30s' or a share of the limit's period, '50%'. note: why. by: who; null: as the
-- setting pglimit.by says, or the role. With expires_at it sets the temporary rule for these keys, without it the
-- permanent one, and leaves the other one alone.
--
-- Returns the row that it replaced, or null. Waits for other changes of limits, until they commit. Fails with SQLSTATE
-- 22023 or 23514 if that is no rule.
create or replace function pglimit.set_limit(
    limiter text, limit_text text default null, key text default null, prefix text default null,
    action text default 'enforce', max_wait text default null, note text default null, enabled boolean default true,
    expires_at timestamptz default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
begin
    if coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    elsif expires_at <= clock_timestamp() then
        raise exception 'pglimit: expires_at is %: that has passed', expires_at
            using errcode = 'invalid_parameter_value';
    end if;
    perform set_config('pglimit.by', coalesce(by, _by), true);
    insert into pglimit.limits
        (limiter, limit_text, key, prefix, action, max_wait, note, enabled, expires_at, changed_by, changed_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, '', now())
    on conflict on constraint limits_match do update
    set (action, limit_text, max_wait, note, enabled, expires_at) = ($5, $2, $6, $7, $8, $9);
    perform set_config('pglimit.by', _by, true);
    return (select h.before from pglimit.limits_history h order by h.id desc limit 1); -- no other change is under way
end
$$;
