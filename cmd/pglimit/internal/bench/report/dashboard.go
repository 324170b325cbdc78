package report

// dashboard is the write-up's own: twelve panels in its order, then what it did not show.
// Its panel of an endpoint without a limit is left out, as the bench has no such endpoint:
// in its place is how many requests were answered.
var dashboard = []chapter{
	{
		title: "The write-up's twelve panels",
		about: "In the order of its dashboard. A panel that showed granted and denied requests together is two pictures here, a and b.",
		pictures: []numbered{
			{"1a", grantMax},
			{"1b", denialMax},
			{"2a", grantP99},
			{"2b", denialP99},
			{"3a", grantMean},
			{"3b", denialMean},
			{"4", requestMean},
			{"5", answeredShare},
			{"6", meanInAll},
			{"7", grantedInAll},
			{"8", answeredInAll},
			{"9", grantedSoFar},
			{"10", deniedOverTime},
			{"11", grantedShare},
			{"12", deniedShare},
		},
	},
	{
		title: "Further pictures",
		pictures: plain(limitPicture{}, grantedOverTime, failedOverTime, deadlocksOverTime, grantCurve, denialCurve, grantP50, denialP50,
			tripsOverTime, walOverTime, deniedInAll, grantedPercent, deniedPercent, failedPercent),
	},
}
