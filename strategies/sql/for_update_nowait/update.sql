-- Writes the decision to the row, which the transaction has locked.
-- $1 key, $2 limiter, $3 full_ns, $4 token_ns, $5 at_ns.
update $table
set full_ns = $3::bigint, token_ns = $4::bigint, at_ns = $5::bigint
where key = $1::text and limiter = $2::text
