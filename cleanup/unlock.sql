-- Gives back a job's lock.
--
-- $1 job, $2 its holder.
-- Locks and writes the job's row. (A time that no clock comes before, however far it steps back.)
-- Returns true, or no row if another has it.
update pglimit.job_locks set until = '-infinity' where job = $1::text and holder = $2::text
returning true
