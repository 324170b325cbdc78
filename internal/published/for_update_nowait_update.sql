-- $1 key. The row is locked.
update $schema.for_update_nowait set last_request = now() where key = $1::text
