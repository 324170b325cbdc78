-- The strategy token_bucket: a table, a function that takes from one bucket, and
-- one that takes from many.
--
-- No index but the primary key and half-empty pages: every update is HOT (it
-- stays in its page and touches no index). The table is small and hot, so
-- autovacuum comes by count of dead rows, not by share, and does not dawdle.

-- +goose Up
create table pglimit.token_bucket (
    key          text collate "C" not null,
    limiter      text collate "C" not null,
    debt         bigint not null,
    at_us        bigint not null,
    token_parts  bigint not null,
    refill_parts bigint not null,
    burst        bigint not null,
    primary key (key, limiter)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- +goose StatementBegin
-- Look, lock, decide, write. The look is a plain read: it may deny, so that a
-- denial locks and writes nothing, but never admit. Admission is decided under
-- the row lock, by the clock as it is then. Every statement in here has its own
-- snapshot (read committed), so the lock returns the row as last committed.
-- Starts over when the row appeared or vanished in between.
--
-- granted: of the tokens wanted. debt, at_us: the bucket after the decision.
create function pglimit.token_bucket_take_v1(
    _key text, _limiter text, _token_parts bigint, _refill_parts bigint, _burst bigint,
    want bigint, unit bigint, relaxed boolean,
    out granted bigint, out debt bigint, out at_us bigint
)
language plpgsql
set search_path = ''
as $$
#variable_conflict use_variable
declare
    bucket pglimit.token_bucket;
    now_us bigint;
begin
    loop
        -- Look.
        now_us := pglimit.clock_us_v1();
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
        at_us := greatest(now_us, bucket.at_us);
        debt := pglimit.owed_v1(
            bucket.debt, bucket.at_us, bucket.token_parts, bucket.refill_parts, now_us, _token_parts, _refill_parts, _burst);
        granted := pglimit.grantable_v1(want, unit, debt, _token_parts, _burst);
        if granted = 0 then
            return;
        end if;
        if relaxed then
            perform set_config('synchronous_commit', 'off', true);
        end if;

        if bucket.key is null then
            -- The first request of this key, unless another's insert is sooner.
            debt := granted * _token_parts;
            insert into pglimit.token_bucket as b (key, limiter, debt, at_us, token_parts, refill_parts, burst)
            values (_key, _limiter, debt, at_us, _token_parts, _refill_parts, _burst)
            on conflict do nothing;
            if found then
                -- Where it had to wait for an insert that was rolled back, it is later
                -- now: what flowed back meanwhile must not be credited.
                if pglimit.clock_us_v1() > at_us + 1000 then
                    at_us := pglimit.clock_us_v1();
                    update pglimit.token_bucket b set at_us = at_us where b.key = _key and b.limiter = _limiter;
                end if;
                return;
            end if;
        else
            -- Lock.
            select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter for no key update;
            if found then
                -- Decide.
                now_us := pglimit.clock_us_v1();
                at_us := greatest(now_us, bucket.at_us);
                debt := pglimit.owed_v1(
                    bucket.debt, bucket.at_us, bucket.token_parts, bucket.refill_parts, now_us, _token_parts, _refill_parts, _burst);
                granted := pglimit.grantable_v1(want, unit, debt, _token_parts, _burst);
                -- Write.
                if granted > 0 then
                    debt := debt + granted * _token_parts;
                    update pglimit.token_bucket b
                    set debt = debt, at_us = at_us, token_parts = _token_parts, refill_parts = _refill_parts, burst = _burst
                    where b.key = _key and b.limiter = _limiter;
                end if;
                return;
            end if;
        end if;
    end loop;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Takes from many buckets in one call; the arrays have one element per request.
-- One row per request, in order. The caller orders the requests by key and
-- limiter: locks are then always taken in that order and never deadlock.
create function pglimit.token_bucket_take_many_v1(
    _keys text[], _limiters text[], _token_parts bigint[], _refill_parts bigint[], _bursts bigint[],
    wants bigint[], units bigint[], relaxed boolean
) returns table (granted bigint, debt bigint, at_us bigint)
language plpgsql
set search_path = ''
as $$
begin
    for i in 1 .. cardinality(_keys) loop
        select t.granted, t.debt, t.at_us into granted, debt, at_us
        from pglimit.token_bucket_take_v1(
            _keys[i], _limiters[i], _token_parts[i], _refill_parts[i], _bursts[i], wants[i], units[i], relaxed) t;
        return next;
    end loop;
end
$$;
-- +goose StatementEnd

-- +goose Down
drop function pglimit.token_bucket_take_many_v1(text[], text[], bigint[], bigint[], bigint[], bigint[], bigint[], boolean);
drop function pglimit.token_bucket_take_v1(text, text, bigint, bigint, bigint, bigint, bigint, boolean);
drop table pglimit.token_bucket;
