-- $1 key, $2 the interval in microseconds.
-- One row if the request is let through, none if not. Locks the row either way.
insert into $schema.upsert as t (key, last_request) values ($1::text, now())
on conflict (key) do update set last_request = now()
where t.last_request <= now() - $2::bigint * interval '1 microsecond'
returning now()
