package report_test

var advice = []string{
	"Take token_bucket: it is the fastest in 4 of 5 scenarios, and exact in all of them.",
	"for_update_nowait is only for code that must not change. How sure this is: 2 rounds, at most 4 % apart.",
}
