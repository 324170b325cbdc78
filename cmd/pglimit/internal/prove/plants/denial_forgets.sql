-- Planted: the take is sound, and a denial writes the bucket down to where one token is there.
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text,
    _calendar text default null, relaxed boolean default false, ahead_ns bigint default 0
) returns bigint[]
language plpgsql set search_path = '' as $$
declare
    taken bigint[];
begin
    insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
    values (_key, _limiter, pglimit.clock_ns() + want * _token_ns, _token_ns, pglimit.clock_ns())
    on conflict (key, limiter) do update
    set full_ns = greatest(t.full_ns, pglimit.clock_ns()) + want * _token_ns, at_ns = greatest(t.at_ns, pglimit.clock_ns())
    where greatest(t.full_ns, pglimit.clock_ns()) + want * _token_ns <= pglimit.clock_ns() + _window_ns
    returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, 0] into taken;
    if taken is null then
        update pglimit.token_bucket t set full_ns = least(t.full_ns, pglimit.clock_ns() + _window_ns - _token_ns)
        where t.key = _key and t.limiter = _limiter
        returning array[pglimit.clock_ns(), 0, t.full_ns, t.token_ns, t.at_ns, 0, 0] into taken;
    end if;
    return taken;
end
$$
