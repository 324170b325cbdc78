-- Fills a bucket: no row means full. Waits for whoever holds the row, and locks it.
-- $1 key, $2 limiter.
delete from $table
where key = $1::text and limiter = $2::text
