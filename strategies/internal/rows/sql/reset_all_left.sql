-- The keys that have rows of a limiter. One snapshot sees each row once, wherever others
-- move it meanwhile.
-- $1 limiter. Locks nothing.
select array(select distinct key from $table where limiter = $1::text)
