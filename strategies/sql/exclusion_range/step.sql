-- Corrects a bucket whose last range begins later than now, because the clock has stepped back.
-- That range now begins at once, and is as long as before. Other ranges that have not ended are
-- removed.
-- $1 key, $2 limiter.
-- Locks the rows that it removes, and the row that it inserts.
with
clock as materialized (
    select c.now_ns, pglimit.time_of(c.now_ns) as now, pglimit.time_of(c.now_ns + pglimit.step_ns()) as soon
    from (select pglimit.clock_ns() as now_ns offset 0) c
),
gone as (
    delete from $table r
    where r.key = $1::text and r.limiter = $2::text and pg_catalog.upper(r.during) > (select clock.now from clock)
        and exists (
            select from $table a
            where a.key = $1::text and a.limiter = $2::text
                and a.during operator(pg_catalog.&&) pg_catalog.tstzrange((select clock.soon from clock), null)
                and pg_catalog.lower(a.during) > (select clock.soon from clock)
        )
    returning r.during
)
insert into $table (key, limiter, during)
select $1::text, $2::text, pg_catalog.tstzrange(last.now, pglimit.time_of(last.now_ns + (last.ns[1] - last.ns[2])))
from (
    select clock.*, (select pg_catalog.max(array[pglimit.ns_of(pg_catalog.upper(gone.during)), pglimit.ns_of(pg_catalog.lower(gone.during))]) from gone) as ns
    from clock
) last
where last.ns is not null
on conflict do nothing
