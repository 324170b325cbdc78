// Package rate is the vocabulary of pglimit: limits, requests, decisions, the interfaces of a
// strategy, and the errors that all packages share. It imports no other package of this
// module, and the author of a strategy needs no other.
package rate
