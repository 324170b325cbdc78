-- Returns a row of token_bucket. If the clock has stepped back since it was written, the row is
-- corrected: the bucket owes now what it owed then.
create or replace function pglimit.token_bucket_stepped(inout b pglimit.token_bucket, now_ns bigint)
language plpgsql immutable parallel safe
set search_path = ''
as $$
begin
    if b.at_ns > now_ns + pglimit.step_ns() then
        b.full_ns := greatest(1, b.full_ns - (b.at_ns - now_ns));
        b.until_ns := nullif(greatest(0, b.until_ns - (b.at_ns - now_ns)), 0);
        b.at_ns := now_ns;
    end if;
end
$$;
