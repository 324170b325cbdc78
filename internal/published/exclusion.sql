-- $1 key, $2 the interval in microseconds.
-- Fails with exclusion_violation where another range overlaps: that is the denial.
-- It writes first and looks afterwards, so inserts that meet wait for one another,
-- each with its own row in the other's way: that is the deadlock.
insert into $schema.exclusion (key, during)
values ($1::text, tstzrange(now(), now() + $2::bigint * interval '1 microsecond'))
returning now()
