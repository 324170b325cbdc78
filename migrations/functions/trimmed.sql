-- Returns the text without white space around it. White space is what Unicode calls so, as for Go's
-- strings.TrimSpace. "!" stands for a backslash: what one in a string means depends on
-- standard_conforming_strings, so no string here has any.
create or replace function pglimit.trimmed(text) returns text
language sql immutable parallel safe
return regexp_replace($1 collate "C", replace(
    '^[!u0009-!u000d !u0085!u00a0!u1680!u2000-!u200a!u2028!u2029!u202f!u205f!u3000]+|[!u0009-!u000d !u0085!u00a0!u1680!u2000-!u200a!u2028!u2029!u202f!u205f!u3000]+$', '!', chr(92)), '', 'g');
