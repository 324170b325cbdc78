-- Corrects a bucket whose last range begins later than now, because the clock has stepped back.
-- That range now begins at once, and is as long as before. Other ranges that have not ended are
-- removed.
-- $1 key, $2 limiter.
-- Locks the rows that it removes, and the row that it inserts.
with
clock as materialized (
    select pglimit.clock_ns() as now_ns
),
gone as (
    delete from $table r
    using clock
    where r.key = $1::text and r.limiter = $2::text and pg_catalog.upper(r.during) > pglimit.time_of(clock.now_ns)
        and exists (
            select from $table a
            where a.key = $1::text and a.limiter = $2::text
                and a.during operator(pg_catalog.&&) pg_catalog.tstzrange(pglimit.time_of(clock.now_ns + pglimit.step_ns()), null)
                and pg_catalog.lower(a.during) > pglimit.time_of(clock.now_ns + pglimit.step_ns())
        )
    returning r.during
)
insert into $table (key, limiter, during)
select $1::text, $2::text, pg_catalog.tstzrange(
    pglimit.time_of(clock.now_ns), pglimit.time_of(clock.now_ns + (pglimit.ns_of(pg_catalog.upper(last.during)) - pglimit.ns_of(pg_catalog.lower(last.during)))))
from clock cross join (select gone.during from gone order by pg_catalog.upper(gone.during) desc limit 1) last
on conflict do nothing
