-- Returns why a plain statement changes limits.
create or replace function pglimit.limit_reason() returns text
language sql stable
return case when current_setting('pglimit.note', true) ~ '[^[:space:]]' then current_setting('pglimit.note', true)
    else '(no reason given)' end;
