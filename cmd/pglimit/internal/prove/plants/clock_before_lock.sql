-- Planted: the clock is read before the row is locked. Who waited for the lock moves at_ns backwards, and the next one is
-- credited the same time again.
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text,
    _calendar text default null, relaxed boolean default false, ahead_ns bigint default 0
) returns bigint[]
language plpgsql set search_path = '' as $$
declare
    now_ns constant bigint := pglimit.clock_ns();
    taken bigint[];
begin
    insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
    values (_key, _limiter, now_ns + want * _token_ns, _token_ns, now_ns)
    on conflict (key, limiter) do update
    set full_ns = now_ns + greatest(0, t.full_ns - t.at_ns - greatest(0, now_ns - t.at_ns)) + want * _token_ns, at_ns = now_ns
    where greatest(0, t.full_ns - t.at_ns - greatest(0, now_ns - t.at_ns)) + want * _token_ns <= _window_ns
    returning array[now_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, 0] into taken;
    return coalesce(taken, array[now_ns, 0, now_ns + _window_ns, _token_ns, now_ns, 0, 0]);
end
$$
