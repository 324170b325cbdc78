-- Who holds permits, the oldest first. $1 limiters and $2 key, or null: of any; $3 how many rows. Locks nothing.
select limiter, key, holder, weight, since, expires_at from pglimit.holders
where ($1::text[] is null or limiter = any ($1)) and ($2::text is null or key = $2)
order by limiter, key, token limit $3
