-- Takes from one bucket: want tokens in whole multiples of unit (all or nothing, if the two are
-- equal). If wants is not null, takes what several requests want, in turn, or one that takes ahead.
--
-- The usual case is one update: of a row with the same price, no lease, and enough for all. A row
-- that does not have enough is not locked, and what is locked is checked again. (A call that is denied
-- by that second check keeps the lock.)
--
-- In all other cases it looks without a lock, and denies if there is nothing to grant: such a denial
-- locks no row, writes nothing, and waits for nobody. Otherwise it inserts the row, or locks it first and
-- then decides once more.
--
-- _token_ns: nanoseconds until one token is refilled. _window_ns: until a burst is refilled.
-- wants, units: one element for each of several requests, or null. If they are given, want is the sum
-- of wants, and unit is only checked. aheads_ns: each of them also takes what comes back within that
-- time. Null: none does.
-- impatient: gives up with SQLSTATE 55P03 after 20 ms if another call holds the row (or a little later, if
-- it stands in a queue). Changes lock_timeout until the transaction ends.
--
-- granted: tokens. now_ns: the time of the decision. bucket: the row after it (null: there is none).
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, wants bigint[], units bigint[], aheads_ns bigint[], impatient boolean,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket
)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
declare
    late_ns bigint;
begin
    if (want > 0 and unit between 1 and want and _token_ns > 0 and unit <= _window_ns / _token_ns and _window_ns <= 6400000000000000000) is not true then
        raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %', want, unit, _token_ns, _window_ns using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;

    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;

    granted := want / unit * unit;
    if wants is null and granted <= _window_ns / _token_ns and pg_catalog.current_setting('transaction_read_only') = 'off' then -- on a standby it can only deny
        -- The usual case. If it waits for a call that changes the row, Postgres checks and sets with the
        -- row and the clock of after that.
        update pglimit.token_bucket b
        set (full_ns, at_ns) = (
                select least(greatest(b.full_ns, b.at_ns, clock.now_ns) + granted * _token_ns, greatest(b.at_ns, clock.now_ns) + _window_ns), -- the clock may have stepped back since "where"
                    greatest(b.at_ns, clock.now_ns)
                from (select pglimit.clock_ns() as now_ns offset 0) clock -- one reading
            ),
            padding = null
        where b.key = _key and b.limiter = _limiter
            and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, pglimit.clock_ns(), _token_ns, _window_ns, granted)
        returning b.* into bucket;
        now_ns := bucket.at_ns;
    end if;

    if bucket.key is null then
        for try in 1 .. 2 loop
            if try = 1 then
                select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
            else
                bucket := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
            end if;
            now_ns := pglimit.clock_ns(); -- behind the look or the lock: compared with an older time, a new row would be ahead
            continue when try = 1 and bucket.at_ns > now_ns + pglimit.step_ns(); -- the lock moves such a row
            now_ns := greatest(now_ns, bucket.at_ns); -- a decision is not dated before the grants that it counts

            granted := case
                when wants is null then least(want, pglimit.token_bucket_there(bucket, now_ns, _token_ns, _window_ns)) / unit * unit
                else pglimit.in_turn(
                    pglimit.token_bucket_free_ns(bucket, now_ns, _token_ns, _window_ns), pglimit.token_bucket_room_ns(bucket, now_ns, _token_ns, _window_ns), _token_ns,
                    wants, units, aheads_ns, 1, cardinality(wants))
            end;
            if granted = 0 then
                return;
            elsif try = 2 then
                update pglimit.token_bucket b
                set full_ns = greatest(pglimit.token_bucket_full_ns(b, now_ns, _token_ns), now_ns) + granted * _token_ns,
                    token_ns = _token_ns, at_ns = now_ns, padding = null, leased_ns = pglimit.token_bucket_leased_ns(b, now_ns, _token_ns)
                where b.key = _key and b.limiter = _limiter
                returning b.* into bucket;
                return;
            elsif bucket.key is null then
                insert into pglimit.token_bucket as b (key, limiter, full_ns, token_ns, at_ns)
                values (_key, _limiter, now_ns + granted * _token_ns, _token_ns, now_ns)
                on conflict do nothing
                returning b.* into bucket;
                exit when found; -- else another call was faster
            end if;
        end loop;
    end if;

    -- The update or the insert may have waited for a call that changed nothing in the end. Then the grant
    -- is dated too early: tokens refilled during the wait would come on top of it. Later it would have been
    -- granted as well; so date it later.
    late_ns := pglimit.clock_ns();
    if late_ns > now_ns + 10000000 then -- 10 ms
        update pglimit.token_bucket b set full_ns = greatest(b.full_ns, late_ns + granted * _token_ns), at_ns = late_ns
        where b.key = _key and b.limiter = _limiter
        returning b.* into bucket;
        now_ns := late_ns;
    end if;
end
$$;
