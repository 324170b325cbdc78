-- Sets lock_timeout to patience (null: not), and synchronous_commit to off if relaxed, until the transaction ends.
--
-- A single expression, so that the planner inlines it. Assign it to something: "perform" is a query of its own.
create or replace function pglimit.transaction_settings(patience text, relaxed boolean) returns text
language sql volatile
return concat(
    case when patience is not null then set_config('lock_timeout', patience, true) end,
    case when relaxed then set_config('synchronous_commit', 'off', true) end);
