-- Gives a permit back: pglimit.release. $1 limiter, $2 key, $3 holder.
-- Locks the row. Returns whether it was still held. A crash of the server may forget it: then the permit expires.
select pglimit.release($1::text, $2::text, $3::text, true)
