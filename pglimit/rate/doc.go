// Package rate is the vocabulary of pglimit: limits, requests, decisions, the interfaces of a
// strategy, and the errors that all packages share. It imports the standard library only,
// and the author of a strategy needs no other package of this module.
package rate
