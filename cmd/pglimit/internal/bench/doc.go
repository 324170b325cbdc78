// Package bench is the load-test harness behind "pglimit bench": it puts each
// strategy under the same load, in turn, and says how fast and how exact it was.
//
//	config.go     what to run, and whether that makes sense
//	workload.go   which key a caller asks for next
//	closed.go     callers that wait for their answer before they ask again
//	open.go       arrivals on a schedule, whether or not the server keeps up
//	recorder.go   what a caller saw: latencies, counts, errors, the history
//	history.go    the history, small enough to keep and whole enough for audit.go
//	stages.go     combining, memory and leases: which were on, and what each did
//	instance.go   pools and limiters, as a process of the service would have them
//	stats.go      what Postgres itself counted meanwhile
//	run.go        one strategy after another; tidy.go removes what they leave
//	report.go     the result; verdict.go says it in a word; json.go and table.go write it
//
// The harness must not be what is measured: a denial from memory takes 145 ns, and the
// harness adds 80, half of it for reading the clock (BenchmarkRecord). It takes no lock,
// and no two callers write to the same cache line.
package bench
