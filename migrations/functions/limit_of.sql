-- Returns the limit that a text spells, as rate.ParseLimit reads it in Go: "100/1m burst 20", "10/s",
-- "5/1d". Without "burst N" the burst equals the tokens. Fails with SQLSTATE 22023 if it cannot be
-- read. Whether such a limit can be kept is checked by pglimit.limit_token_ns.
create or replace function pglimit.limit_of(limit_text text, out tokens bigint, out period_ns bigint, out burst bigint)
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    words constant text collate "C" := lower(pglimit.trimmed(limit_text) collate "C");
    rate constant text collate "C" := split_part(words, 'burst', 1);
    tokens_word constant text := pglimit.trimmed(split_part(rate, '/', 1));
    period_word constant text := pglimit.trimmed(substr(rate, strpos(rate, '/') + 1));
    burst_word constant text := pglimit.trimmed(substr(words, nullif(strpos(words, 'burst'), 0) + 5)); -- null: there is none
    why text;
begin
    tokens := pglimit.whole_number(replace(tokens_word, '_', ''));
    period_ns := pglimit.period_ns_of(period_word);
    burst := case when burst_word is null then tokens else pglimit.whole_number(replace(burst_word, '_', '')) end;
    why := case
        when strpos(rate, '/') = 0 then 'there is no "/" between tokens and period'
        when tokens is null then format('tokens %s is not a whole number', to_json(tokens_word))
        when period_ns is null then format('period %s is not a duration such as 500ms, 1m30s or 1d, or a unit such as s, m, h or d', to_json(period_word))
        when burst is null then format('burst %s is not a whole number', to_json(burst_word))
        when burst_word is not null and burst = 0 then 'the burst must be at least 1'
    end;
    if why is not null then
        raise exception 'pglimit: limit %: %', to_json(limit_text), why using errcode = 'invalid_parameter_value', hint = 'Nothing was taken. Write it like ''100/1m burst 20''.';
    end if;
end
$$;
