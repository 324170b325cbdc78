-- $1 key, $2 the interval in microseconds.
-- Locks the row, or fails with lock_not_available. Returns the transaction's time
-- and whether the interval has passed.
select now(), last_request <= now() - $2::bigint * interval '1 microsecond'
from $schema.for_update_nowait
where key = $1::text
for update nowait
