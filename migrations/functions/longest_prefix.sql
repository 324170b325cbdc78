-- Returns which of the prefixes, the longest of which is the first, the key begins with first. Null: with none.
create or replace function pglimit.longest_prefix(key text, prefixes text[]) returns int
language plpgsql immutable strict parallel safe set search_path = '' as $$
begin
    for n in 1 .. cardinality(prefixes) loop
        if starts_with(key, prefixes[n]) then
            return n;
        end if;
    end loop;
    return null;
end
$$;
