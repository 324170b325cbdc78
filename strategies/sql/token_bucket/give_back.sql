-- Gives back tokens that were not used: migrations/functions/token_bucket_give_back.sql.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window, $5 tokens, $6 when they were
-- granted, in nanoseconds since 1970, $7 how many nanoseconds later they were due, $8 whether the
-- commit may be relaxed, $9 the calendar of the limit, or null.
-- Locks the row. Returns nothing of use.
select pglimit.token_bucket_give_back($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $9::text, $8::boolean)
