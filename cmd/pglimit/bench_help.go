package main

const benchLong = `Put the strategies under load, one after another, and say how fast and how
exact each was, and which one to take.

Without flags it runs a suite: loads with one round trip per decision, and some
of them with the default stages of a Limiter. It takes less than a minute.

If no database is named, it starts a throwaway Postgres (from local binaries,
else with the docker command, else from binaries that it downloads: about 10 MB,
once) and removes it at the end. A named database must be migrated; the rows
made in it are removed again. The load is real: do not use a server that others
depend on. It says on stderr which server it loads, and refuses one on another
machine unless --yes is given.

In a closed loop, the default, each caller waits for its answer before it asks
again: this shows how much the server can do. With --rps requests arrive on a
schedule, and latency counts from the scheduled time: this shows what users see,
also while the server stalls.

Every decision is audited by the database's own clock: all grants, and as many
of the denials as --audit has room for, drawn at random. "over" are tokens
granted above the limit of a key, "undue" are denials although the tokens were
there.

--fail-if takes a METRIC, a comparison (< <= = != >= >) and a value. Metrics
are those of --details: p50, p90, p99, p99.9, p99.99, max, mean, each alone or
of (grant) or (denial); grants/s, denials/s, decisions/s; over, not_due, errors,
failed, deadlocks, contended, trips/decision, wal/decision, granted and so on.
A figure that is not known fails too.

Exit codes: 0 fine; 1 a strategy granted too much, a --fail-if condition was
met, or most requests of a run failed; 2 failed; 130 ended by Ctrl-C (what
was measured so far is printed).`
