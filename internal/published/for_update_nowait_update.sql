-- $1 key. The transaction has locked the row.
update $schema.for_update_nowait set last_request = now() where key = $1::text
