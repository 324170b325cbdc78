-- Returns the keys that have rows of a limiter. One snapshot sees each row once, even if an
-- update moves it meanwhile.
-- $1 limiter. Locks nothing.
select array(select distinct key from $table where limiter = $1::text)
