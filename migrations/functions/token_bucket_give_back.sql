-- Gives back tokens that were granted and not used: what they are due is explained in
-- strategies/internal/rows/sql/give_back.sql, which does the same for tables without leases.
--
-- _key, _limiter, _token_ns, _window_ns: as for token_bucket_take. tokens: how many. granted_ns: when
-- they were granted. delay_ns: how much later they were due.
--
-- Waits for any call that holds the row, locks it, and only then reads the clock. Fails with SQLSTATE
-- 22023 if an argument is null, negative or too large.
create or replace function pglimit.token_bucket_give_back(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, tokens bigint, granted_ns bigint, delay_ns bigint
) returns void
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
set jit = off
as $$
declare
    held_full_ns bigint;
    held_at_ns bigint;
    held_leased_ns bigint;
    now_ns bigint;
    used_ns bigint; -- refilled or reserved since they were due
    back_ns bigint;
begin
    if (_key is not null and _limiter is not null and _token_ns > 0 and _window_ns between _token_ns and pglimit.max_window_ns()
        and tokens between 0 and 9223372036854775807 / _token_ns and granted_ns >= 0 and delay_ns between 0 and 9223372036854775807 - granted_ns) is not true then
        raise exception 'token_bucket_give_back: % tokens, token_ns %, window_ns %, granted_ns %, delay_ns %', tokens, _token_ns, _window_ns, granted_ns, delay_ns
            using errcode = 'invalid_parameter_value';
    end if;
    back_ns := tokens * _token_ns;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    select t.full_ns, t.at_ns, coalesce(t.leased_ns, 0) into held_full_ns, held_at_ns, held_leased_ns
    from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns for no key update;
    now_ns := pglimit.clock_ns();
    used_ns := greatest(0, greatest(held_at_ns, now_ns, held_full_ns - _window_ns + least(_window_ns, held_leased_ns)) - granted_ns - delay_ns);
    if used_ns > 0 then
        back_ns := least(back_ns, _window_ns);
    end if;
    if held_full_ns > now_ns and greatest(held_at_ns, now_ns) >= granted_ns and back_ns > used_ns then
        update pglimit.token_bucket t set full_ns = greatest(now_ns, held_full_ns - (back_ns - used_ns)) where t.key = _key and t.limiter = _limiter;
    end if;
end
$$;
