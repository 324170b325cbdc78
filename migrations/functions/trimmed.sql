-- Returns the text without white space around it. White space is what Unicode calls so, as for Go's
-- strings.TrimSpace.
create or replace function pglimit.trimmed(text) returns text
language sql immutable parallel safe
return regexp_replace($1 collate "C",
    '^[\u0009-\u000d \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+|[\u0009-\u000d \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$', '', 'g');
