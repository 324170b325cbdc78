-- Sets all these rules, or none. rules: an array of rows as to_jsonb makes them; what is left out is as in set_limit.
-- Rules that are so already are left alone. prune: delete all others. note: why, for rules without a note and for those
-- that are deleted. dry_run: change nothing. Returns what was changed, or would be: an array of {"before": row or null,
-- "after": row or null}. Waits and fails as set_limit, and then names the rule.
create or replace function pglimit.set_limits(
    rules jsonb, prune boolean default false, note text default null, by text default null,
    dry_run boolean default false
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    asked pglimit.limits[];
    rule record;
    known bigint;
    changes jsonb;
    n text; -- of the rule that is set
    why text;
    state text;
    violated text;
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
    _note constant text := coalesce(current_setting('pglimit.note', true), '');
begin
    if prune and coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why the other rules are deleted'
            using errcode = 'invalid_parameter_value';
    end if;
    asked := array(
        select jsonb_populate_record(null::pglimit.limits,
            jsonb_build_object('action', 'enforce', 'enabled', true, 'note', coalesce(note, ''))
            || jsonb_strip_nulls(i.rule) || jsonb_build_object('temporary', i.rule ->> 'expires_at' is not null,
                'kind', coalesce(substring(i.rule ->> 'action', '^(observe|off|places)$'), 'live')))
        from jsonb_array_elements(rules) with ordinality i (rule, n) order by i.n);
    why := (
        select format('rule %s has %s, which no rule has', i.n, to_json(field))
        from jsonb_array_elements(rules) with ordinality i (rule, n) cross join lateral jsonb_object_keys(i.rule) field
        where to_jsonb(asked[i.n]) -> field is null limit 1);
    why := coalesce(why, (
        select format('rules %s and %s are for the same keys', min(a.ordinality), max(a.ordinality))
        from unnest(asked) with ordinality a
        group by a.limiter, a.key, a.prefix, a.kind, a.temporary having count(*) > 1 limit 1));
    if why is not null then
        raise exception 'pglimit: %', why using errcode = 'invalid_parameter_value';
    end if;
    update pglimit.limits set note = '' where false; -- its trigger waits for other changes
    known := (select coalesce(max(h.id), 0) from pglimit.limits_history h);
    perform set_config('pglimit.by', coalesce(by, _by), true), set_config('pglimit.note', coalesce(note, ''), true);
    begin
        if prune then
            delete from pglimit.limits l where array[l.limiter, l.key, l.prefix, l.kind, l.temporary::text] not in (
                select array[a.limiter, a.key, a.prefix, a.kind, a.temporary::text] from unnest(asked) a);
        end if;
        for rule in
            select a.* from unnest(asked) with ordinality a left join pglimit.limits l
                on array[l.limiter, l.key, l.prefix, l.kind] = array[a.limiter, a.key, a.prefix, a.kind]
                and l.temporary = a.temporary
            where (a.action, a.limit_text, a.max_wait, a.note, a.enabled, a.expires_at)
                is distinct from (l.action, l.limit_text, l.max_wait, l.note, l.enabled, l.expires_at)
            order by a.ordinality
        loop
            n := format('%s (%s)', rule.ordinality, concat_ws(' ', rule.limiter, rule.key, rule.prefix));
            perform pglimit.set_limit(rule.limiter, rule.limit_text, rule.key, rule.prefix,
                rule.action, rule.max_wait, rule.note, rule.enabled, rule.expires_at);
        end loop;
        changes := (
            select jsonb_agg(jsonb_build_object('before', h.before, 'after', h.after) order by h.id)
            from pglimit.limits_history h where h.id > known);
        if dry_run then
            raise exception using errcode = 'PGLDR', message = 'pglimit: dry run'; -- undoes it
        end if;
    exception
        when sqlstate 'PGLDR' then
            null;
        when others then
            get stacked diagnostics why = message_text, state = returned_sqlstate, violated = constraint_name;
            raise exception 'pglimit: %', coalesce('rule ' || n || ': ', '') || regexp_replace(why, '^pglimit: ', '')
                using errcode = state, constraint = violated;
    end;
    perform set_config('pglimit.by', _by, true), set_config('pglimit.note', _note, true);
    return coalesce(changes, '[]');
end
$$;
