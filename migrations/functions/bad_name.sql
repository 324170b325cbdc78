-- Returns what is wrong with the name of a limiter or a key, as field says: null if nothing is. A single expression,
-- so that the planner inlines it.
create or replace function pglimit.bad_name(field text, name text, longest int) returns text
language sql immutable parallel safe
return field || case
    when name is null then ' is null: name it, with a constant if there is only one'
    when name = '' collate "C" then ' is empty: name it, with a constant if there is only one'
    when octet_length(name) > longest then ' has ' || octet_length(name)::text || ' bytes: at most ' || longest::text || ' are allowed (hash what is longer)'
end;
