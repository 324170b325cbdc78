// Package wire counts the round trips that connections to Postgres really make, and can make
// each of them take longer, as if the server were further away.
//
//	wrap.go     puts the two below pgx
//	meter.go    adds up what the connections counted
//	conn.go     a connection that counts, and whose answers may come later
//	sleep_*.go  sleep as precisely as the system can
//
// Counting adds 7 ns to a round trip (BenchmarkRoundTrip).
package wire
