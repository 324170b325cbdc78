// Package rate is the vocabulary of pglimit: limits, requests and decisions, what a strategy
// is, and the errors that all share. It imports nothing of ours; authors of strategies need
// nothing else.
package rate
