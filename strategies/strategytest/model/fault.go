package model

// fault is one that a test puts in, to see that the judge, or the test, notices.
type fault int

const (
	none fault = iota
	clamps
	noConversion
	forgetsAtAStep
	leaseVanishes
	leaseNotAside
	settlesFree
	refundsTooMuch
	expiresUndated
	refundsAcrossAStep
	noStep
)

func (f fault) String() string {
	return [...]string{
		"none", "clamps at the last write", "no conversion", "forgets at a step", "lease vanishes", "lease not aside",
		"settles free", "refunds too much", "an expired lease is not dated",
		"refunds across a step", "no step",
	}[f]
}
