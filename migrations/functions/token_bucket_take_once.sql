-- Takes want tokens from one bucket, all or nothing, for a request with an ID, as
-- token_bucket_take does. If that ID was granted tokens of this bucket before, takes nothing, and
-- returns what it was granted then: compare that with the request, which may be another one.
--
-- A grant is kept for _ttl_ns, in the transaction of the take. A denial is not kept, and writes
-- nothing.
--
-- Two calls with the same ID at the same time: the second one waits for the bucket's row, which
-- the first one has locked or inserted. Then it finds what the first one was granted, or nothing
-- if that was rolled back. Rows are locked in this order: the bucket's, then the ID's.
--
-- _key, _limiter, _token_ns, _window_ns, want, impatient: as for token_bucket_take.
--
-- now_ns: the time of the decision. answer: what was granted (0: it was denied), and the bucket's
-- row after that.
create or replace function pglimit.token_bucket_take_once(
    _key text, _limiter text, _id text, _token_ns bigint, _window_ns bigint, want bigint, _ttl_ns bigint, impatient boolean,
    out now_ns bigint, out answer pglimit.token_bucket_answers
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    _granted bigint;
    taken record;
    bucket pglimit.token_bucket;
begin
    if (_id <> '' and _ttl_ns between 1 and 86400000000000) is not true then
        raise exception 'token_bucket_take_once: id %, ttl_ns %', _id, _ttl_ns using errcode = 'invalid_parameter_value';
    end if;
    -- The locks that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket, pglimit.token_bucket_answers in row exclusive mode;
    loop
        answer := pglimit.token_bucket_answer(_key, _limiter, _id);
        if answer.id is not null then
            now_ns := answer.at_ns;
            return;
        end if;
        -- This was the second look, behind the one that denied: between the first look and that one,
        -- another call with this ID may have been granted the tokens.
        exit when _granted = 0;

        select * into taken from pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, null, null, null, impatient);
        _granted := taken.granted;
        now_ns := taken.now_ns;
        bucket := taken.bucket;
        continue when _granted = 0;
        insert into pglimit.token_bucket_answers as a (key, limiter, id, granted, token_ns, window_ns, at_ns, full_ns, leased_ns, lease_until_ns, ttl_ns, until_ns)
        values (_key, _limiter, _id, _granted, _token_ns, _window_ns, bucket.at_ns, bucket.full_ns, bucket.leased_ns, bucket.until_ns, _ttl_ns, bucket.at_ns + _ttl_ns)
        on conflict (key, limiter, id) do update
        set granted = excluded.granted, token_ns = excluded.token_ns, window_ns = excluded.window_ns, at_ns = excluded.at_ns, full_ns = excluded.full_ns,
            leased_ns = excluded.leased_ns, lease_until_ns = excluded.lease_until_ns, ttl_ns = excluded.ttl_ns, until_ns = excluded.until_ns
        where a.until_ns <= excluded.at_ns -- it had expired by then, and was not swept yet
        returning a.* into answer;
        exit when found;
        -- Another call with this ID was granted tokens while this one waited for the row.
        update pglimit.token_bucket b set full_ns = b.full_ns - _granted * _token_ns where b.key = _key and b.limiter = _limiter;
    end loop;
    if _granted = 0 then
        answer.granted := 0;
        answer.token_ns := bucket.token_ns;
        answer.at_ns := bucket.at_ns;
        answer.full_ns := bucket.full_ns;
        answer.leased_ns := bucket.leased_ns;
        answer.lease_until_ns := bucket.until_ns;
    end if;
end
$$;
