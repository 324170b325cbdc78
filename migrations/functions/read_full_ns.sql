-- When a bucket is full again, as its row reads at now_ns to somebody who pays token_ns
-- for a token: full_ns, unless the row was written under another limit. No row (null): it is
-- full.
--
-- A single expression, so that the planner puts it into the statement.
create or replace function pglimit.read_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return case
    when its_token_ns = token_ns then full_ns
    when full_ns is null then 0
    else pglimit.converted_full_ns(full_ns, its_token_ns, at_ns, now_ns, token_ns)
end;
