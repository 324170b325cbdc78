// Package trouble injects faults into a run: rows that another session holds locked, and a server that restarts.
//
//	plan.go     the faults, their target, and the outcome
//	locks.go    a session that holds rows
//	restart.go  one restart
package trouble
