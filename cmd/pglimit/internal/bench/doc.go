// Package bench is the load-test harness behind "pglimit bench": it puts each
// strategy under the same load, in turn, and says how fast and how exact it was.
//
//	config.go      what to run; the loads are in package scenario
//	place.go       where
//	run.go         one run after another; tidy.go removes what they leave
//	measure.go     one run
//	workload.go    which key a caller asks for next, and at what cost
//	closed.go      callers that wait for their answer before they ask again
//	open.go        arrivals on a schedule (schedule.go), whether or not the server keeps up
//	recorder.go    what a caller saw: latencies, counts, errors, the history
//	timeline.go    what all callers saw, interval by interval; latency.go how long it took in all
//	history.go     the history, small enough to keep and whole enough for audit.go
//	instance.go    pools and limiters, as a process of the service would have them
//	stats.go       what Postgres, the wire and the limiters counted meanwhile
//	summarize.go   all of that as a result.Run, which others write and draw
//
// The harness must not be what is measured: a denial from memory takes 145 ns, and the
// harness adds 40, for the most part reading the clock (BenchmarkRecord). No two callers
// write to the same cache line, and a caller takes a lock once an interval, or once in
// a thousand answers (timeline.go).
package bench
