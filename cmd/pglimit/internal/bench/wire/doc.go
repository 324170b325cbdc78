// Package wire counts the round trips that connections to Postgres really make, and can make
// each of them take longer, as if the server were further away.
//
//	wrap.go     puts the two below pgx
//	meter.go    adds up what the connections counted
//	conn.go     a connection that counts
//	far.go      a connection whose answers come later
//	pause.go    the wait for a late answer; pause_linux.go waits more precisely
//
// Counting adds 7 ns to a round trip (BenchmarkRoundTrip).
package wire
