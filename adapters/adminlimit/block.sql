-- Whether a key is blocked, and how often it was denied lately. $1 limiter; $2 key. Locks nothing.
select denials, level, blocked_until, last_counted_at from pglimit.blocks where limiter = $1 and key = $2
