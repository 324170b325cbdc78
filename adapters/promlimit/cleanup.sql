-- When the scheduled cleanup ran last, and when it is due next.
--
-- No parameters. Locks nothing that others wait for. Returns two times, in seconds since 1970,
-- or no row if it never ran.
select extract(epoch from ran_at)::float8, extract(epoch from due_at)::float8
from pglimit.schedule
where job = 'pglimit.cleanup'
