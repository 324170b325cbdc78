// Package model is the rule of a bucket, written to be read and to be believed: the
// oracle against which SQL and Go that decide for real are tested. It shares no
// arithmetic with either, knows no database and no clock, and is slow.
//
// [Bucket] is the rule. [Judge] knows no rule, only the first promise: in any span of
// time T no more is granted than Burst + Tokens × T / Period. The tests of this package
// hold the one against the other.
package model
