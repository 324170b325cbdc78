package main

const benchLong = `Put the strategies under load, one after another, and say how fast and how
exact each was, and which one to take.

Without flags it runs a suite: five loads for each strategy, one round trip per
decision; then the same with combining and the memory of denials, the defaults
of a Limiter. --scenario names loads, "--scenario help" describes them. A flag
about the load, such as --keys or --callers, makes a load of your own, or
changes the named ones. (--durability, --unlogged, --audit and --seed alone do
not.) --plan reads loads in phases from a YAML file.

If no database is named, it starts a throwaway Postgres (from local binaries,
else with the docker command, else from binaries that it downloads: about 10 MB,
once) and removes it at the end. A named database must be migrated; the rows
made in it are removed again. The load is real: do not use a server that others
depend on. It says on stderr which server it loads, and asks first if that is
another machine, unless --yes is given.

In a closed loop, the default, each caller waits for its answer before it asks
again: this shows how much the server can do. With --rps requests arrive on a
schedule, and latency counts from the scheduled time: this shows what users see,
also while the server stalls. --callers then limits how many requests are under
way at once; the others wait for their turn.

Decisions are audited by the database's own clock: all grants, and as many of
the denials as --audit has room for, drawn at random. A denial is checked
against the grants only, so leaving denials out may hide a fault, but never
reports a false one.
  exact           no key was granted more than its limit in any span of time,
                  and every denial was due: the tokens were not there
  exact, sampled  the same, but only 1 denial in several was checked: the report
                  says in how many
  never over      no key was granted more than its limit. No denial could be
                  judged: all were contended, or leases had set tokens aside,
                  which are denied to others
  no fault seen   grants are missing: --audit had no room, or answers were lost

--latency, --lock and --restart inject trouble; the audit goes on.

The tables are measured as they are stored: logged, unless "pglimit storage
unlogged" was run. --unlogged makes them unlogged on a throwaway server, and
refuses a named database whose tables are logged. The report says how each
table was stored.

WAL and transaction ids are counted for the whole server, and deadlocks for
the database, so they include everything else that runs there. Latencies are
those of decisions, and of requests that were given up while they waited; other
errors are counted separately.

--fail takes a METRIC, a comparison (< <= = != >= >) and a value. Metrics:
p50, p90, p99, p99.9, p99.99, max, mean, each alone or of (grant) or (denial);
grants/s, denials/s, decisions/s; over, not_due, errors, failed, deadlocks,
contended, trips, wal, granted. "over=0" does not cover grants that the audit
lacks: the verdict is then "no fault seen".

Exit codes: 0 fine; 1 a strategy granted too much, a --fail condition was not
kept, or most requests of a run failed; 2 failed; 130 ended by Ctrl-C (what
was measured so far is printed).`
