// Package model is the rule of a bucket, written to be easy to check. The tests compare
// the SQL and the Go that decide for real with it. It shares no arithmetic with them,
// uses no database and no clock, and is slow.
//
// [Bucket] is the rule. [Judge] does not know the rule, only the first promise: in any span
// of time T at most Burst + Tokens × T / Period tokens are granted. The tests of this
// package check Bucket with Judge.
package model
