package model

// fault is a mistake that a test makes on purpose, to see that the judge or a test notices it.
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
	aheadOfLeases
	refundsReserved
	refundsManyAtOnce
	expiresUndated
	refundsAcrossAStep
	noStep
)

func (f fault) String() string {
	return [...]string{
		"none", "clamps at the last write", "no conversion", "forgets at a step", "lease vanishes", "lease not aside",
		"settles free", "refunds too much", "reserves what is leased", "refunds what others stand behind", "refunds many as if due together", "an expired lease is not dated",
		"refunds across a step", "no step",
	}[f]
}
