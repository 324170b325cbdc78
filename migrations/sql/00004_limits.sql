-- The limits as a table, which operators change while services run: in psql, with pglimit.set_limit and
-- pglimit.delete_limit or plain statements, with "pglimit limits", or in Go. Services read it every second, at once
-- (pglimit.limits_since); pglimit.allow reads it with each call that names no limit. Rules with the action places are for
-- semaphores: pglimit.acquire reads them (pglimit.places_of), and nothing else does.
--
-- A row is a rule for the keys of a limiter. What it matches: one key; else the keys that begin with its prefix; else
-- all keys. Of the rules of a kind that match, the one for the key holds, else the longest prefix, else the one for all.
--
-- A rule that expires is temporary: it lies over the permanent one for the same keys, which holds again when it ends, or is
-- disabled or deleted.
--
-- A change locks the table limits_history first, until the commit. So one transaction changes limits at a time, and the
-- last id of the history is the version of the limits. Nobody who decides locks or waits for anything here.

-- +goose Up
-- Of what kind a rule is, by its action. A limiter can have a rule of each kind for the same keys.
create function pglimit.limit_kind(action text) returns text
language sql immutable parallel safe set search_path = ''
return case when action in ('observe', 'off', 'places') then action else 'live' end;

create table pglimit.limits (
    id         bigint generated always as identity primary key,
    limiter    text collate "C", -- null: all, to switch them off
    key        text collate "C",
    prefix     text collate "C" check (octet_length(prefix) between 1 and 1024),
    action     text collate "C" not null default 'enforce' check (action in ('enforce', 'observe', 'allow', 'deny', 'off', 'places')),
    kind       text collate "C" not null generated always as (pglimit.limit_kind(action)) stored,
    limit_text text collate "C",
    max_wait   text collate "C" constraint max_wait_is_a_duration_or_a_share_of_the_period check (case
        when max_wait is null or not enabled then true -- whatever it says, it can be disabled
        when action <> 'enforce' then false
        when max_wait ~ '^[1-9][0-9]{0,5}%$' then true
        else coalesce(pglimit.period_ns_of(max_wait) between 1 and 200 * 365 * 86400000000000, false)
    end),
    note       text not null check (note ~ '[^[:space:]]' and length(note) <= 1000), -- why it was set or changed last
    enabled    boolean not null default true,
    -- By the database's clock; null: never. Any program can read a time in this span.
    expires_at timestamptz check (expires_at between '1970-01-01 00:00+00' and '2262-01-01 00:00+00'),
    temporary  boolean not null generated always as (expires_at is not null) stored,
    changed_by text not null,
    changed_at timestamptz not null,
    constraint names_and_limit_are_valid check ( -- else the function fails, and says why
        (pglimit.request_ns(coalesce(limiter, 'all'), coalesce(key, 'all'), case when limit_text is null or action = 'places' or not enabled then '1/s' else limit_text end, 1, null, null, null)).token_ns > 0
    ),
    constraint a_key_or_a_prefix check (num_nonnulls(key, prefix) <= 1),
    constraint off_is_for_all_keys check (action <> 'off' or num_nonnulls(key, prefix) = 0),
    constraint only_off_is_for_all_limiters check (limiter is not null or action = 'off'),
    constraint a_limit_if_the_action_has_one check ((limit_text is not null) = (action in ('enforce', 'observe', 'places'))),
    constraint places_are_a_whole_number check (case
        when action <> 'places' or limit_text is null then true
        when limit_text ~ '^[1-9][0-9]{0,15}$' then limit_text::bigint <= 1000000000000000
        else false
    end),
    constraint observed_names_fit check (action <> 'observe' or octet_length(limiter) <= 117), -- "api" is observed in the buckets of "api (observed)"
    constraint limits_match unique nulls not distinct (limiter, key, prefix, kind, temporary)
) using heap;
create index limits_expire on pglimit.limits (expires_at) where enabled and expires_at is not null;

-- What was changed, when, by whom and why. Only the owner of the schema can write it. (Not unique: a dump of data alone that
-- is restored has the changes that it makes, too.)
create table pglimit.limits_history (
    id      bigint not null generated always as identity,
    at      timestamptz not null,
    role    text not null, -- who was connected
    by      text not null, -- who said to have done it
    note    text not null, -- why
    limiter text collate "C",
    key     text collate "C",
    prefix  text collate "C",
    before  jsonb, -- the row; null: there was none
    after   jsonb
) using heap;
create index limits_history_id on pglimit.limits_history (id);
alter table pglimit.limits_history replica identity full;

-- Plain statements say who changes limits, and why they delete, or update without a note, by two settings:
--     begin; set local pglimit.by = 'ann'; set local pglimit.note = 'ticket 7'; delete from pglimit.limits where id = 7; commit;
--
-- The triggers that act as the owner do so for this table only: everybody may call them for a table of their own. (Its name is
-- compared as text, because a type named here could be one of the caller's temporary schema.)
-- +goose StatementBegin
create function pglimit.limits_will_change() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    if tg_table_schema <> 'pglimit' or tg_table_name <> 'limits' then
        raise exception 'pglimit: this is a trigger of pglimit.limits only' using errcode = 'insufficient_privilege';
    elsif tg_op = 'TRUNCATE' then
        raise exception 'pglimit: truncate leaves no history' using errcode = 'object_not_in_prerequisite_state', hint = 'Use: delete from pglimit.limits';
    end if;
    lock table pglimit.limits_history in share row exclusive mode;
    return null;
end
$$;
-- +goose StatementEnd

-- Why a plain statement changes limits.
create function pglimit.limit_reason() returns text
language sql stable set search_path = ''
return case when current_setting('pglimit.note', true) ~ '[^[:space:]]' then current_setting('pglimit.note', true) else '(no reason given)' end;

-- An update that sets the note says so to limit_changes, by a time that this overwrites: the note may be what it was.
-- +goose StatementBegin
create function pglimit.limit_note_changes() returns trigger
language plpgsql set search_path = '' as $$
begin
    new.changed_at := 'infinity';
    return new;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create function pglimit.limit_changes() returns trigger
language plpgsql set search_path = '' as $$
begin
    if tg_op = 'UPDATE' and (new.limiter, new.key, new.prefix) is distinct from (old.limiter, old.key, old.prefix) then
        raise exception 'pglimit: limiter, key and prefix of a rule cannot change: the history of its keys would miss it' using errcode = 'object_not_in_prerequisite_state',
            hint = 'Insert another rule, and delete this one';
    end if;
    if tg_op = 'UPDATE' and new.changed_at <> 'infinity' then
        new.note := pglimit.limit_reason(); -- the former one was for another change
    end if;
    if tg_op = 'INSERT' or new.enabled and not old.enabled or (new.action, new.limit_text) is distinct from (old.action, old.limit_text) then -- else it can be disabled
        perform pglimit.window_end_ns( -- fails for a time zone that is none
            (pglimit.request_ns('all', 'all', case when new.limit_text is null or new.action = 'places' then '1/s' else new.limit_text end, 1, null, null, null)).calendar, pglimit.clock_ns());
    end if;
    new.changed_by := coalesce(nullif(current_setting('pglimit.by', true), ''), session_user);
    new.changed_at := clock_timestamp();
    return new;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create function pglimit.limit_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    of constant pglimit.limits := case when tg_op = 'DELETE' then old else new end;
    last constant bigint := coalesce((select max(h.id) from pglimit.limits_history h), 0);
    next bigint := nextval('pglimit.limits_history_id_seq');
begin
    if tg_table_schema <> 'pglimit' or tg_table_name <> 'limits' then
        raise exception 'pglimit: this is a trigger of pglimit.limits only' using errcode = 'insufficient_privilege';
    end if;
    if next <= last then -- logical replication brought the rows and not the sequence
        next := setval('pglimit.limits_history_id_seq', last + 1);
    end if;
    insert into pglimit.limits_history (id, at, role, by, note, limiter, key, prefix, before, after)
    overriding system value values (
        next, clock_timestamp(), session_user, coalesce(nullif(current_setting('pglimit.by', true), ''), session_user),
        case when tg_op = 'DELETE' then pglimit.limit_reason() else of.note end, of.limiter, of.key, of.prefix,
        case when tg_op <> 'INSERT' then to_jsonb(old) end, case when tg_op <> 'DELETE' then to_jsonb(new) end
    );
    return null;
end
$$;
-- +goose StatementEnd

create trigger limits_will_change before insert or update or delete or truncate on pglimit.limits for each statement execute function pglimit.limits_will_change();
create trigger limit_a_note_changes before update of note on pglimit.limits for each row execute function pglimit.limit_note_changes(); -- the first, by its name
create trigger limit_changes before insert or update on pglimit.limits for each row execute function pglimit.limit_changes();
create trigger limit_changed after insert or update or delete on pglimit.limits for each row execute function pglimit.limit_changed();

-- Sets the rule for a limiter, or of it for a key or the keys that begin with a prefix:
--
--     select pglimit.set_limit('api', '100/1m burst 20', note => 'default');
--     select pglimit.set_limit('api', '5/s', key => 'user:42', note => 'ticket 7', expires_at => now() + interval '1 hour');
--     select pglimit.set_limit('api', action => 'deny', prefix => 'bot:', note => 'scraping', by => 'ann');
--     select pglimit.set_limit('imports', '5', action => 'places', note => 'default');
--
-- action: enforce; observe, which counts beside and denies nobody; allow; deny; off, for a limiter, or with a null limiter
-- for all: granted unasked; places, for a semaphore, whose number of places is the limit_text. max_wait: how long callers of Wait may wait, as '30s' or a share of the limit's period, '50%'. note: why. by:
-- who; null: as the setting pglimit.by says, or the role. With expires_at it is the temporary rule for its keys, which leaves the
-- permanent one alone, and without it the permanent one, which leaves the temporary one alone. Returns the row that it replaced, or null. Fails with SQLSTATE 22023 or 23514 if that is no rule.
-- +goose StatementBegin
create function pglimit.set_limit(
    limiter text, limit_text text default null, key text default null, prefix text default null, action text default 'enforce', max_wait text default null,
    note text default null, enabled boolean default true, expires_at timestamptz default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    _limiter constant text := limiter;
    _key constant text := key;
    _prefix constant text := prefix;
    _kind constant text := pglimit.limit_kind(action);
    replaced jsonb;
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
begin
    if coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    elsif expires_at <= clock_timestamp() then
        raise exception 'pglimit: expires_at is %: that has passed', expires_at using errcode = 'invalid_parameter_value';
    end if;
    update pglimit.limits set note = '' where false; -- waits for other changes, so that what is returned is what is replaced
    perform set_config('pglimit.by', coalesce(by, _by), true);
    select to_jsonb(l) into replaced from pglimit.limits l
    where (l.limiter, l.key, l.prefix, l.kind, l.temporary) is not distinct from (_limiter, _key, _prefix, _kind, set_limit.expires_at is not null);
    insert into pglimit.limits as l (limiter, limit_text, key, prefix, action, max_wait, note, enabled, expires_at, changed_by, changed_at)
    values (_limiter, set_limit.limit_text, _key, _prefix, set_limit.action, set_limit.max_wait, set_limit.note, set_limit.enabled, set_limit.expires_at, '', now())
    on conflict on constraint limits_match do update
    set (action, limit_text, max_wait, note, enabled, expires_at)
        = (excluded.action, excluded.limit_text, excluded.max_wait, excluded.note, excluded.enabled, excluded.expires_at);
    perform set_config('pglimit.by', _by, true);
    return replaced;
end
$$;
-- +goose StatementEnd

-- The rule that delete_limit and enable_limit are about: the temporary one, until it expires, else the permanent one. Null: none.
create function pglimit.limit_on_top(limiter text, key text, prefix text, kind text) returns bigint
language sql volatile set search_path = '' set row_security = off as $$
    select l.id from pglimit.limits l where array[l.limiter, l.key, l.prefix, l.kind] = array[$1, $2, $3, $4]
    order by (l.expires_at > clock_timestamp()) is true desc, l.temporary limit 1
$$;

-- Removes a rule, and returns the row that it was, or null: the temporary one, until it expires, else the permanent one; of the kind
-- off both. kind: live, observe, off or places. note: why. by: as for set_limit.
-- +goose StatementBegin
create function pglimit.delete_limit(
    limiter text, key text default null, prefix text default null, kind text default 'live', note text default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    top bigint;
    removed jsonb;
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
    _note constant text := coalesce(current_setting('pglimit.note', true), '');
begin
    if coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    elsif (kind in ('live', 'observe', 'off', 'places')) is not true then
        raise exception 'pglimit: kind is %: it must be live, observe, off or places', coalesce(kind, 'null') using errcode = 'invalid_parameter_value';
    end if;
    delete from pglimit.limits where false; -- waits for other changes, so that a rule that they set is seen
    perform set_config('pglimit.by', coalesce(by, _by), true), set_config('pglimit.note', note, true);
    top := pglimit.limit_on_top(limiter, key, prefix, kind);
    delete from pglimit.limits l where l.id = top returning to_jsonb(l) into removed;
    if removed ->> 'kind' = 'off' then -- what is switched on is on
        delete from pglimit.limits l where l.limiter is not distinct from delete_limit.limiter and l.kind = 'off';
    end if;
    perform set_config('pglimit.by', _by, true), set_config('pglimit.note', _note, true);
    return removed;
end
$$;
-- +goose StatementEnd

-- Enables a rule, or disables it, and returns the row that it was, or null: the temporary one, until it expires, else the permanent
-- one. One that is so already is left alone. Parameters are as for delete_limit.
-- +goose StatementBegin
create function pglimit.enable_limit(
    limiter text, enabled boolean, key text default null, prefix text default null, kind text default 'live', note text default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    top bigint;
    changed jsonb;
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
begin
    if coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    elsif (kind in ('live', 'observe', 'off', 'places')) is not true then
        raise exception 'pglimit: kind is %: it must be live, observe, off or places', coalesce(kind, 'null') using errcode = 'invalid_parameter_value';
    end if;
    update pglimit.limits set note = '' where false; -- as in set_limit
    top := pglimit.limit_on_top(limiter, key, prefix, kind);
    select to_jsonb(l) into changed from pglimit.limits l where l.id = top;
    perform set_config('pglimit.by', coalesce(by, _by), true);
    update pglimit.limits l set (enabled, note) = (enable_limit.enabled, enable_limit.note)
    where l.id = top and l.enabled is distinct from enable_limit.enabled;
    perform set_config('pglimit.by', _by, true);
    return changed;
end
$$;
-- +goose StatementEnd

-- Sets all these rules, or none. rules is an array of rows as to_jsonb makes them; what is left out is as in set_limit. Rules that
-- are so already are left alone. prune: delete all others. note: why, for rules without a note and for those that are deleted.
-- dry_run: change nothing. Returns what was changed, or would be: an array of {"before": row or null, "after": row or null}.
-- Fails with SQLSTATE 22023 or 23514, and the number of the rule, if one is none.
-- +goose StatementBegin
create function pglimit.set_limits(
    rules jsonb, prune boolean default false, note text default null, by text default null, dry_run boolean default false
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
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
        raise exception 'pglimit: note is empty: say why the other rules are deleted' using errcode = 'invalid_parameter_value';
    end if;
    for rule in
        select format('rule %s has %s, which no rule has', i.n, to_json(field)) as why
        from jsonb_array_elements(rules) with ordinality i (rule, n) cross join lateral jsonb_object_keys(i.rule) field
        where field not in ('id', 'limiter', 'key', 'prefix', 'action', 'kind', 'limit_text', 'max_wait', 'note', 'enabled', 'expires_at', 'temporary', 'changed_by', 'changed_at')
        union all
        select format('rules %s and %s are for the same keys', min(i.n), max(i.n))
        from jsonb_array_elements(rules) with ordinality i (rule, n)
        group by i.rule ->> 'limiter', i.rule ->> 'key', i.rule ->> 'prefix', pglimit.limit_kind(i.rule ->> 'action'), i.rule ->> 'expires_at' is null
        having count(*) > 1
    loop
        raise exception 'pglimit: %', rule.why using errcode = 'invalid_parameter_value';
    end loop;
    update pglimit.limits set note = '' where false; -- as in set_limit
    known := (select coalesce(max(h.id), 0) from pglimit.limits_history h);
    perform set_config('pglimit.by', coalesce(by, _by), true), set_config('pglimit.note', coalesce(note, ''), true);
    begin
        if prune then
            delete from pglimit.limits l where array[l.limiter, l.key, l.prefix, l.kind, l.temporary::text] not in (
                select array[i ->> 'limiter', i ->> 'key', i ->> 'prefix', pglimit.limit_kind(i ->> 'action'), (i ->> 'expires_at' is not null)::text] from jsonb_array_elements(rules) i
            );
        end if;
        for rule in
            with asked as (
                select i.n, r.limiter, r.key, r.prefix, coalesce(r.action, 'enforce') as action, r.limit_text, r.max_wait,
                    coalesce(r.note, set_limits.note, '') as note, coalesce(r.enabled, true) as enabled, r.expires_at
                from jsonb_array_elements(rules) with ordinality i (rule, n) cross join lateral jsonb_populate_record(null::pglimit.limits, i.rule) r
            )
            select a.* from asked a
            left join pglimit.limits l on array[l.limiter, l.key, l.prefix, l.kind] = array[a.limiter, a.key, a.prefix, pglimit.limit_kind(a.action)]
                and l.temporary = (a.expires_at is not null)
            where l.id is null or (l.action, l.limit_text, l.max_wait, l.note, l.enabled, l.expires_at)
                is distinct from (a.action, a.limit_text, a.max_wait, a.note, a.enabled, a.expires_at)
            order by a.n
        loop
            n := format('%s (%s)', rule.n, concat_ws(' ', rule.limiter, rule.key, rule.prefix));
            if rule.expires_at <= clock_timestamp() then
                raise exception 'expires_at is %: that has passed', rule.expires_at using errcode = 'invalid_parameter_value';
            end if;
            insert into pglimit.limits as l (limiter, limit_text, key, prefix, action, max_wait, note, enabled, expires_at, changed_by, changed_at)
            values (rule.limiter, rule.limit_text, rule.key, rule.prefix, rule.action, rule.max_wait, rule.note, rule.enabled, rule.expires_at, '', now())
            on conflict on constraint limits_match do update
            set (action, limit_text, max_wait, note, enabled, expires_at)
                = (excluded.action, excluded.limit_text, excluded.max_wait, excluded.note, excluded.enabled, excluded.expires_at);
        end loop;
        changes := (select jsonb_agg(jsonb_build_object('before', h.before, 'after', h.after) order by h.id) from pglimit.limits_history h where h.id > known);
        if dry_run then
            raise exception using errcode = 'PGLDR', message = 'pglimit: dry run'; -- undoes it
        end if;
    exception
        when sqlstate 'PGLDR' then
            null;
        when others then
            get stacked diagnostics why = message_text, state = returned_sqlstate, violated = constraint_name;
            raise exception 'pglimit: %', coalesce('rule ' || n || ': ', '') || regexp_replace(why, '^pglimit: ', '') using errcode = state, constraint = violated;
    end;
    perform set_config('pglimit.by', _by, true), set_config('pglimit.note', _note, true);
    return coalesce(changes, '[]');
end
$$;
-- +goose StatementEnd

-- How many buckets that are known, of whatever strategy, a rule for these keys would hold for: not those of keys that have a rule
-- of that kind for themselves or for a longer prefix. A null limiter: of all limiters. Reads the tables of the buckets. Of the kind
-- places: how many keys of the semaphore that are known.
-- +goose StatementBegin
create function pglimit.limit_reaches(limiter text, key text default null, prefix text default null, kind text default 'live') returns bigint
language plpgsql stable set search_path = '' set row_security = off set jit = off as $$
declare
    view text;
    n bigint;
    reached bigint := 0;
begin
    foreach view in array case kind when 'places' then array['pglimit.permits'] else array['pglimit.buckets', 'pglimit.ranges'] end loop
        continue when to_regclass(view) is null; -- exclusion_range is not migrated
        execute format('
            with b as materialized ( -- which Citus may have on several nodes, and the limits on one
                select b.limiter, b.key from %s b
                where ($1 is null or b.limiter = $1) and ($2 is null or b.key = $2) and ($3 is null or starts_with(b.key, $3))
            )
            select count(*) from b
            where ($2 is not null or not exists (
                    select from pglimit.limits l
                    where l.limiter = b.limiter and l.kind = $4 and l.enabled and (l.expires_at > clock_timestamp()) is not false
                        and (l.key = b.key or length(l.prefix) > coalesce(length($3), 0) and starts_with(b.key, l.prefix))
                ))', view) into n using limiter, key, prefix, kind;
        reached := reached + n;
    end loop;
    return reached;
end
$$;
-- +goose StatementEnd

-- The rules for a key, in the order in which they are looked at, and what becomes of each: it holds, or is overruled by one that
-- does, disabled or expired; or it fails: it would hold, but cannot be read or kept (why says what is wrong), and each request gets an
-- error. For one with a limit that holds, also what is left in the bucket (as pglimit.peek says, of the
-- strategy token_bucket), or, of the kind places, how many are held. Nothing is counted. If none holds that is live or off, the limit
-- in the service's configuration does.
-- +goose StatementBegin
create function pglimit.explain_limit(limiter text, key text)
returns table (state text, rule pglimit.limits, remaining bigint, retry_after interval, reset_after interval, held bigint, why text)
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    held_kinds text[] := '{}';
begin
    for rule in
        select l.* from pglimit.limits l
        where (l.limiter = explain_limit.limiter or l.limiter is null)
            and (l.key = explain_limit.key or l.key is null and (l.prefix is null or starts_with(explain_limit.key, l.prefix)))
        order by array_position(array['off', 'live', 'observe', 'places'], l.kind), l.limiter nulls first, l.key, length(l.prefix) desc nulls last, l.temporary desc
    loop
        remaining := null; retry_after := null; reset_after := null; held := null; why := null;
        state := case
            when not rule.enabled then 'disabled'
            when rule.expires_at <= clock_timestamp() then 'expired'
            when rule.kind = any (held_kinds) or rule.kind = 'live' and 'off' = any (held_kinds) then 'overruled'
            else 'holds'
        end;
        if state = 'holds' then
            held_kinds := held_kinds || rule.kind;
            if rule.kind = 'places' then
                held := (select coalesce(sum(h.weight), 0) from pglimit.holders h where h.limiter = rule.limiter and h.key = explain_limit.key);
            elsif rule.limit_text is not null then
                begin
                    select p.remaining, p.retry_after, p.reset_after into remaining, retry_after, reset_after
                    from pglimit.peek(rule.limiter || case rule.kind when 'observe' then ' (observed)' else '' end, explain_limit.key, rule.limit_text) p;
                exception when invalid_parameter_value then
                    state := 'fails';
                    why := regexp_replace(sqlerrm, '^pglimit: ', '');
                end;
            end if;
        end if;
        return next;
    end loop;
end
$$;
-- +goose StatementEnd

-- The last changes, the latest first: of all limits, of those of a limiter, or of the rules of it that are for a key. Null: any.
-- +goose StatementBegin
create function pglimit.limit_history(limiter text default null, key text default null, last bigint default null) returns setof pglimit.limits_history
language sql stable set search_path = '' set row_security = off set jit = off as $$
    select h.* from pglimit.limits_history h
    where ($1 is null or h.limiter = $1 or h.limiter is null) and ($2 is null or h.key = $2 or h.key is null and (h.prefix is null or starts_with($2, h.prefix)))
    order by h.id desc limit $3
$$;
-- +goose StatementEnd

-- All rules that hold now for limiters, and the version, as of one snapshot: what a service reads every second. Without the
-- rules if they are those that it knows by known, the stamp of its last answer. "now" is the database's clock.
-- +goose StatementBegin
create function pglimit.limits_since(known text) returns text
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
    return json_build_object('stamp', stamp, 'version', coalesce(last.id, 0), 'now', extract(epoch from now), 'rules', coalesce((
        select json_agg(json_build_object('id', l.id, 'limiter', l.limiter, 'key', l.key, 'prefix', l.prefix, 'action', l.action,
            'limit', l.limit_text, 'max_wait', l.max_wait, 'note', l.note, 'expires', extract(epoch from l.expires_at)))
        from pglimit.limits l where l.enabled and (l.expires_at > now) is not false and l.kind <> 'places'
    ), '[]'));
end
$$;
-- +goose StatementEnd

-- Reads the rules that hold for a request now, for pglimit.allow and pglimit.peek without a limit. Either allowed is not null:
-- a rule grants or denies it; or live is the text of the limit that decides. beside: prices of a token and of a burst,
-- and beside_calendar, of the rule that is only observed (null: there is none that can be read). Fails with
-- SQLSTATE 22023 if there is no limit, or the request is nonsense, and with 55000, naming the row, if the rule that
-- decides cannot be read or kept.
-- +goose StatementBegin
create function pglimit.rule_of(
    _limiter text, _key text, _n bigint, out allowed boolean, out retry_after interval, out at timestamptz, out live text, out beside bigint[], out beside_calendar text
)
language plpgsql set search_path = '' set row_security = off set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
    rule record;
    prices bigint[];
    zone text;
    ends_at timestamptz; -- of the live rule
    why text; -- it cannot be read
begin
    if to_regclass('pglimit.limits') is null then
        select r.* into allowed, retry_after, at, live, beside, beside_calendar
        from jsonb_to_record(pglimit.on_coordinator(format('select pg_catalog.to_jsonb(r) from pglimit.rule_of(%L, %L, %L) r', _limiter, _key, _n))::jsonb)
            r (allowed boolean, retry_after interval, at timestamptz, live text, beside bigint[], beside_calendar text);
        return;
    end if;
    perform pglimit.request_ns(_limiter, _key, '1000000000/s burst 6307200000000000000', _n, null, null, null); -- any n
    at := clock_timestamp();
    for rule in
        select distinct on (l.kind) l.*
        from (
            select * from pglimit.limits where limiter = _limiter and key = _key
            union all select * from pglimit.limits where limiter = _limiter and key is null
                and prefix = any (array(select left(_key, n) from generate_series(1, length(_key)) n))
            union all select * from pglimit.limits where limiter = _limiter and key is null and prefix is null
            union all select * from pglimit.limits where limiter is null
        ) l
        where l.enabled and (l.expires_at > rule_of.at) is not false and l.kind <> 'places'
        order by l.kind, l.key, length(l.prefix) desc nulls last, l.limiter nulls first, l.temporary desc -- "off" comes last: it is for all
    loop
        if rule.limit_text is not null then
            begin
                select array[r.token_ns, r.window_ns], r.calendar into prices, zone from pglimit.request_ns(_limiter, _key, rule.limit_text, 1, null, null, null) r;
                perform pglimit.window_end_ns(zone, pglimit.clock_ns()); -- fails for a time zone that has gone
            exception when invalid_parameter_value then
                continue when rule.action = 'observe';
                why := format('row %s of pglimit.limits: %s', rule.id, regexp_replace(sqlerrm, '^pglimit: ', ''));
            end;
        end if;
        if rule.action = 'observe' then
            beside := prices;
            beside_calendar := zone;
        else
            ends_at := rule.expires_at;
            live := rule.limit_text;
            allowed := case rule.action when 'enforce' then null else rule.action <> 'deny' end;
        end if;
    end loop;
    if allowed is null and why is not null then
        raise exception 'pglimit: %', why using errcode = 'object_not_in_prerequisite_state', hint = 'Nothing was taken. Correct the rule, or disable or delete it.';
    elsif allowed is null and live is null then
        raise exception 'pglimit: no limit is given, and pglimit.limits has none for limiter % and key %', to_json(_limiter), to_json(_key)
            using errcode = 'invalid_parameter_value', hint = format('Nothing was taken. Give a limit, such as ''100/1m burst 20'', or set one for all keys: '
                'select pglimit.set_limit(%L, ''100/1m burst 20'', note => ''default'')', _limiter);
    end if;
    retry_after := case when allowed then interval '0' else coalesce(ends_at - at, interval '1 hour') end;
end
$$;
-- +goose StatementEnd

-- +goose Down
drop function pglimit.explain_limit, pglimit.limit_history;
drop table pglimit.limits, pglimit.limits_history;
drop function pglimit.limit_kind, pglimit.limits_will_change, pglimit.limit_note_changes, pglimit.limit_changes, pglimit.limit_changed, pglimit.limit_reason, pglimit.limit_on_top, pglimit.set_limit, pglimit.delete_limit, pglimit.enable_limit,
    pglimit.set_limits, pglimit.limit_reaches, pglimit.limits_since, pglimit.rule_of;
