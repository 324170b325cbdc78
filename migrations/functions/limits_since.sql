-- Returns all rules for limiters that hold now, and their version, as of one snapshot: a service reads it every second.
-- known: the stamp of its last answer. Without the rules, if they are still those. "now" is the database's clock.
create or replace function pglimit.limits_since(known text) returns text
language plpgsql stable set search_path = '' set row_security = off set jit = off as $$
declare
    now constant timestamptz := clock_timestamp();
    last record;
    stamp text;
begin
    select max(h.id) as id, max(h.at) as at into last
    from (select h.id, h.at from pglimit.limits_history h order by h.id desc limit 1) h;
    stamp := jsonb_build_array(last.id, extract(epoch from last.at), ( -- what is on ends by itself
        select extract(epoch from max(l.expires_at)) from pglimit.limits l where l.enabled and l.expires_at <= now
    ));
    if stamp = known then
        return json_build_object('stamp', stamp, 'now', extract(epoch from now));
    end if;
    return json_build_object('stamp', stamp, 'version', coalesce(last.id, 0), 'now', extract(epoch from now), 'rules', (
        select coalesce(json_agg(json_build_object(
            'id', l.id, 'limiter', l.limiter, 'key', l.key, 'prefix', l.prefix, 'action', l.action,
            'limit', l.limit_text, 'max_wait', l.max_wait, 'note', l.note,
            'expires', extract(epoch from l.expires_at))), '[]')
        from pglimit.limits l where l.enabled and (l.expires_at > now) is not false and l.kind <> 'places'
    ));
end
$$;
