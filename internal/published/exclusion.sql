-- $1 key, $2 the interval in microseconds.
-- Fails with exclusion_violation if another range overlaps: this is the denial.
-- It writes first and looks afterwards. So two inserts that overlap wait for one another,
-- each for the row of the other: this is the deadlock.
insert into $schema.exclusion (key, during)
values ($1::text, tstzrange(now(), now() + $2::bigint * interval '1 microsecond'))
returning now()
