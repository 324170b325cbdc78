-- How many live instances follow the rules of each limiter; "(table)" are those of pglimit serve, which follow the rules
-- of any. Locks nothing.
select limiter, count(*) from pglimit.instances
where until_ns > (select pglimit.clock_ns()) group by limiter order by limiter limit 500
