-- The limits as a table, which operators change while services run: in psql, with pglimit.set_limit and
-- pglimit.delete_limit or plain statements, with "pglimit limits", or in Go. Services read it every second, at once
-- (pglimit.limits_since); pglimit.allow reads it with each call that names no limit.
--
-- A row is a rule for the keys of a limiter. What it matches: one key; else the keys that begin with its prefix; else
-- all keys. Of the rules of a kind that match, the one for the key holds, else the longest prefix, else the one for all.
--
-- A change locks the table limits_history first, until the commit. So one transaction changes limits at a time, and the
-- last id of the history is the version of the limits. Nobody who decides locks or waits for anything here.

-- +goose Up
create table pglimit.limits (
    id         bigint generated always as identity primary key,
    limiter    text collate "C" check (limiter is null or pglimit.valid_name('limiter', limiter, 128) is not null), -- null: all, to switch them off
    key        text collate "C" check (key is null or pglimit.valid_name('key', key, 1024) is not null),
    prefix     text collate "C" check (prefix is null or pglimit.valid_name('prefix', prefix, 1024) is not null),
    action     text collate "C" not null default 'enforce' check (action in ('enforce', 'observe', 'allow', 'deny', 'off')),
    -- A limiter can have a rule of each kind for the same keys.
    kind       text collate "C" not null generated always as (case action when 'observe' then 'observe' when 'off' then 'off' else 'live' end) stored,
    limit_text text collate "C" check (limit_text is null or pglimit.request_ns(limit_text, 1, null, null, null) is not null),
    max_wait   text collate "C" constraint max_wait_is_a_duration_or_a_share_of_the_period check (case
        when max_wait is null then true
        when action <> 'enforce' then false
        when max_wait ~ '^[0-9]{1,6}%$' then true
        else coalesce(pglimit.period_ns_of(lower(max_wait)) > 0, false)
    end),
    note       text not null check (note <> '' and length(note) <= 1000), -- why
    enabled    boolean not null default true,
    expires_at timestamptz check (isfinite(expires_at)), -- by the database's clock; null: never
    changed_by text not null,
    changed_at timestamptz not null,
    constraint a_key_or_a_prefix check (num_nonnulls(key, prefix) <= 1),
    constraint off_is_for_all_keys check (action <> 'off' or num_nonnulls(key, prefix) = 0),
    constraint only_off_is_for_all_limiters check (limiter is not null or action = 'off'),
    constraint a_limit_to_enforce_or_observe check ((limit_text is not null) = (action in ('enforce', 'observe'))),
    constraint observed_names_fit check (action <> 'observe' or octet_length(limiter) <= 117), -- "api" is observed in the buckets of "api (observed)"
    constraint limits_match unique nulls not distinct (limiter, key, prefix, kind)
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

-- Who says to change limits, and why, until the transaction ends: pglimit.by, and pglimit.note of a delete.
-- +goose StatementBegin
create function pglimit.limits_will_change() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    if tg_op = 'TRUNCATE' then
        raise exception 'pglimit: truncate leaves no history' using errcode = 'object_not_in_prerequisite_state', hint = 'Use: delete from pglimit.limits';
    end if;
    lock table pglimit.limits_history in share row exclusive mode;
    return null;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create function pglimit.limit_changes() returns trigger
language plpgsql set search_path = '' as $$
begin
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
    of pglimit.limits := case when tg_op = 'DELETE' then old else new end;
begin
    insert into pglimit.limits_history (at, role, by, note, limiter, key, prefix, before, after)
    values (
        clock_timestamp(), session_user, coalesce(nullif(current_setting('pglimit.by', true), ''), session_user),
        case when tg_op = 'DELETE' then coalesce(nullif(current_setting('pglimit.note', true), ''), '') else of.note end, of.limiter, of.key, of.prefix,
        case when tg_op <> 'INSERT' then to_jsonb(old) end, case when tg_op <> 'DELETE' then to_jsonb(new) end
    );
    return null;
end
$$;
-- +goose StatementEnd

create trigger limits_will_change before insert or update or delete or truncate on pglimit.limits for each statement execute function pglimit.limits_will_change();
create trigger limit_changes before insert or update on pglimit.limits for each row execute function pglimit.limit_changes();
create trigger limit_changed after insert or update or delete on pglimit.limits for each row execute function pglimit.limit_changed();

-- Sets the rule for a limiter, or of it for a key or the keys that begin with a prefix:
--
--     select pglimit.set_limit('api', '100/1m burst 20', note => 'default');
--     select pglimit.set_limit('api', '5/s', key => 'user:42', note => 'ticket 7', expires_at => now() + interval '1 hour');
--     select pglimit.set_limit('api', action => 'deny', prefix => 'bot:', note => 'scraping', by => 'ann');
--
-- action: enforce; observe, which counts beside and denies nobody; allow; deny; off, for a limiter, or with a null limiter
-- for all: granted unasked. max_wait: how long callers of Wait may wait, as '30s' or a share of the limit's period, '50%'. note: why. by:
-- who, if that is not the role. Returns the row that it replaced, or null. Fails with SQLSTATE 22023 or 23514 if that is no rule.
-- +goose StatementBegin
create function pglimit.set_limit(
    limiter text, limit_text text default null, key text default null, prefix text default null, action text default 'enforce', max_wait text default null,
    note text default null, enabled boolean default true, expires_at timestamptz default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off as $$
declare
    _limiter constant text := limiter;
    _key constant text := key;
    _prefix constant text := prefix;
    _kind constant text := case action when 'observe' then 'observe' when 'off' then 'off' else 'live' end;
    replaced jsonb;
begin
    if coalesce(note, '') = '' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    end if;
    lock table pglimit.limits in share row exclusive mode; -- what is replaced is what is returned
    perform set_config('pglimit.by', coalesce(by, ''), true);
    select to_jsonb(l) into replaced from pglimit.limits l
    where (l.limiter, l.key, l.prefix, l.kind) is not distinct from (_limiter, _key, _prefix, _kind);
    insert into pglimit.limits as l (limiter, limit_text, key, prefix, action, max_wait, note, enabled, expires_at, changed_by, changed_at)
    values (_limiter, set_limit.limit_text, _key, _prefix, set_limit.action, set_limit.max_wait, set_limit.note, set_limit.enabled, set_limit.expires_at, '', now())
    on conflict on constraint limits_match do update
    set (action, limit_text, max_wait, note, enabled, expires_at)
        = (excluded.action, excluded.limit_text, excluded.max_wait, excluded.note, excluded.enabled, excluded.expires_at);
    perform set_config('pglimit.by', '', true);
    return replaced;
end
$$;
-- +goose StatementEnd

-- Removes a rule, and returns the row that it was, or null. kind: live, observe or off. note: why. by: as for set_limit.
-- +goose StatementBegin
create function pglimit.delete_limit(
    limiter text, key text default null, prefix text default null, kind text default 'live', note text default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off as $$
declare
    _rule constant text[] := array[limiter, key, prefix, kind];
    removed jsonb;
begin
    if coalesce(note, '') = '' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    end if;
    perform set_config('pglimit.by', coalesce(by, ''), true), set_config('pglimit.note', note, true);
    delete from pglimit.limits l where array[l.limiter, l.key, l.prefix, l.kind] = _rule returning to_jsonb(l) into removed;
    perform set_config('pglimit.by', '', true), set_config('pglimit.note', '', true);
    return removed;
end
$$;
-- +goose StatementEnd

-- All rules that hold now, and the version, as of one snapshot: what a service reads every second. Null if they are
-- those that it knows by known, the stamp of its last answer. "now" is the database's clock.
-- +goose StatementBegin
create function pglimit.limits_since(known text) returns text
language plpgsql stable set search_path = '' set row_security = off as $$
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
        return null;
    end if;
    return json_build_object('stamp', stamp, 'version', coalesce(last.id, 0), 'now', extract(epoch from now), 'rules', coalesce((
        select json_agg(json_build_object('id', l.id, 'limiter', l.limiter, 'key', l.key, 'prefix', l.prefix, 'action', l.action,
            'limit', l.limit_text, 'max_wait', l.max_wait, 'note', l.note, 'expires', extract(epoch from l.expires_at)))
        from pglimit.limits l where l.enabled and (l.expires_at > now) is not false
    ), '[]'));
end
$$;
-- +goose StatementEnd

-- What the rules say about a key now, for pglimit.allow and pglimit.peek. allowed, remaining, retry_after and "at": the decision, if
-- the live rule makes it; else nulls. limit_text: the limit to enforce; where there is a decision, one under which any n is possible.
-- observed: the limit that is only observed, or null. Fails with SQLSTATE 22023 if no live rule holds.
-- +goose StatementBegin
create function pglimit.limits_of(
    _limiter text, _key text,
    out allowed boolean, out remaining bigint, out retry_after interval, out at timestamptz, out limit_text text, out observed text
)
language plpgsql stable set search_path = '' set row_security = off as $$
declare
    now constant timestamptz := clock_timestamp();
    prefixes constant text[] := array(select left(_key, n) from generate_series(1, length(_key)) n);
    rule record;
begin
    for rule in
        select distinct on (l.kind) l.*
        from (
            select * from pglimit.limits where limiter = _limiter and key = _key
            union all select * from pglimit.limits where limiter = _limiter and key is null and prefix = any (prefixes)
            union all select * from pglimit.limits where limiter = _limiter and key is null and prefix is null
            union all select * from pglimit.limits where limiter is null
        ) l
        where l.enabled and (l.expires_at > now) is not false
        order by l.kind, l.key, length(l.prefix) desc nulls last -- "off" comes last: it is for all
    loop
        if rule.action = 'observe' then
            observed := rule.limit_text;
        elsif rule.action = 'enforce' then
            limit_text := rule.limit_text;
        else
            allowed := rule.action <> 'deny';
            remaining := case rule.action when 'deny' then 0 end;
            retry_after := case rule.action when 'deny' then coalesce(rule.expires_at - now + interval '1 second', interval '1 hour') else interval '0' end;
            at := now;
            limit_text := '1000000000/s burst 6307200000000000000';
        end if;
    end loop;
    if limit_text is null then
        raise exception 'pglimit: no limit is given, and no rule of pglimit.limits holds for limiter % and key %', coalesce(to_json(_limiter), 'null'), coalesce(to_json(_key), 'null')
            using errcode = 'invalid_parameter_value', hint = 'Nothing was taken. Give a limit such as ''100/1m burst 20'', or set one for all: select pglimit.set_limit(''api'', ''100/1m burst 20'', note => ''why'')';
    end if;
end
$$;
-- +goose StatementEnd

-- +goose Down
drop table pglimit.limits, pglimit.limits_history;
drop function pglimit.limits_will_change, pglimit.limit_changes, pglimit.limit_changed, pglimit.set_limit, pglimit.delete_limit, pglimit.limits_since, pglimit.limits_of;
