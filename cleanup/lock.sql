-- Tries to take a job's lock, for as long as this transaction lasts.
--
-- $1 job, $2 milliseconds for which the holder may be silent, as text.
-- Takes an advisory lock that belongs to the transaction; waits for nobody.
-- Returns whether it was obtained; the other columns only set what they name.
--
-- A holder that vanished without closing its connection is silent: the server then ends
-- the session, and the lock with it. A transaction_timeout (since PostgreSQL 17) is switched
-- off: it would cut every long run at the same place.
select
    pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('pglimit ' || $1::text, 0)),
    pg_catalog.set_config('idle_in_transaction_session_timeout', $2::text, true),
    case when pg_catalog.current_setting('transaction_timeout', true) is not null then pg_catalog.set_config('transaction_timeout', '0', true) end
