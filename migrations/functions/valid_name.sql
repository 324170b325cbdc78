-- Returns the name, of a limiter or a key as field says. Fails with SQLSTATE 22023 if it is null, empty,
-- or longer than that many bytes.
create or replace function pglimit.valid_name(field text, name text, longest int) returns text
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    why constant text := case
        when name is null then 'is null: name it, with a constant if there is only one'
        when name = '' collate "C" then 'is empty: name it, with a constant if there is only one'
        when octet_length(name) > longest then format('has %s bytes: at most %s are allowed (hash what is longer)', octet_length(name), longest)
    end;
begin
    if why is not null then
        raise exception 'pglimit: % %', field, why using errcode = 'invalid_parameter_value', hint = 'Nothing was taken. Limiter and key together name the bucket: what is limited, and for whom.';
    end if;
    return name;
end
$$;
