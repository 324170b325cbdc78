-- The trigger of a rule before it is written: it checks names, limit_text and max_wait, and fills in who changed the
-- rule and when. For an update that sets the note, it is called twice, first with an argument: then changed_at tells
-- the second call that the note is of this change, even if it reads as before.
create or replace function pglimit.limit_changes() returns trigger
language plpgsql set search_path = '' as $$
begin
    if tg_nargs > 0 then
        new.changed_at := 'infinity';
        return new;
    elsif tg_op = 'UPDATE'
        and (new.limiter, new.key, new.prefix) is distinct from (old.limiter, old.key, old.prefix) then
        raise exception 'pglimit: limiter, key and prefix of a rule cannot change: its history would miss it'
            using errcode = 'object_not_in_prerequisite_state', hint = 'Insert another rule, and delete this one';
    elsif tg_op = 'UPDATE' and new.changed_at <> 'infinity' then
        new.note := pglimit.limit_reason(); -- the former one was for another change
    end if;
    if tg_op = 'INSERT' or new.enabled and not old.enabled -- a rule that is none any more can be disabled
        or (new.action, new.limit_text, new.max_wait) is distinct from (old.action, old.limit_text, old.max_wait) then
        perform pglimit.window_end_ns(r.calendar, pglimit.clock_ns()) -- fails for a time zone that is none
        from pglimit.request_ns(coalesce(new.limiter, 'all'), coalesce(new.key, 'all'),
            coalesce(case when new.action <> 'places' then new.limit_text end, '1/s'), 1, null, null, null) r;
        if new.max_wait is not null and (new.action = 'enforce' and (new.max_wait ~ '^[1-9][0-9]{0,5}%$'
                or pglimit.period_ns_of(new.max_wait) between 1 and 200 * 365 * 86400000000000)) is not true then
            raise exception 'pglimit: %', 'the longest wait is a period such as 30s or a share of the limit''s '
                'such as 50%, and goes with the action enforce' using errcode = 'invalid_parameter_value';
        end if;
    end if;
    new.changed_by := coalesce(nullif(current_setting('pglimit.by', true), ''), session_user);
    new.changed_at := clock_timestamp();
    return new;
end
$$;
create or replace trigger limit_a_note_changes before update of note on pglimit.limits -- the first, by its name
    for each row execute function pglimit.limit_changes('note');
create or replace trigger limit_changes before insert or update on pglimit.limits
    for each row execute function pglimit.limit_changes();
