-- $1 key, $2 the interval in microseconds.
-- Returns a row if the request is let through, and none if not. Locks the table's row either way.
insert into $schema.upsert as t (key, last_request) values ($1::text, now())
on conflict (key) do update set last_request = now()
where t.last_request <= now() - $2::bigint * interval '1 microsecond'
returning now()
