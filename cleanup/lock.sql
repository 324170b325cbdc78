-- Takes a job's lock, or renews it.
--
-- $1 job, $2 its holder, $3 seconds after which it ends.
-- Locks the job's row, and writes it unless another holder has the lock.
-- Returns true, or no row if another has it.
insert into pglimit.job_locks as l (job, holder, until)
values ($1::text, $2::text, pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3::float8))
on conflict (job) do update
set holder = $2::text, until = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3::float8)
where l.holder = $2::text or l.until <= pg_catalog.clock_timestamp()
returning true
