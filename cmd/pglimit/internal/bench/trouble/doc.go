// Package trouble makes things go wrong during a run, on purpose: rows that somebody else holds
// locked, and a server that restarts.
//
//	plan.go     what goes wrong, to whom, and what came of it
//	locks.go    a session that holds rows
//	restart.go  one restart
package trouble
