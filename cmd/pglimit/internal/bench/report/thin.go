package report

import "github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"

// mostPoints of a line: more would not be seen, and would make the file large.
const mostPoints = 120

// interval is a point with how long it lasted, and what had happened when it ended.
type interval struct {
	result.Point
	Length         float64 // seconds
	GrantedSoFar   int64   // requests
	DeadlocksSoFar int64
}

// thin makes one interval of each so many neighbouring points. Counts are added up. Mean
// and p50 are weighted by the decisions, p99 and max are the worst of those joined.
func thin(series []result.Point, every int) []interval {
	var out []interval
	var granted, deadlocks int64
	end := 0.0
	for i, p := range series {
		length := p.Seconds - end
		end = p.Seconds
		if i%every == 0 {
			out = append(out, interval{Point: p, Length: length})
		} else {
			out[len(out)-1].join(p, length)
		}
		granted += p.Granted
		if p.Deadlocks != nil {
			deadlocks += *p.Deadlocks
		}
		out[len(out)-1].GrantedSoFar, out[len(out)-1].DeadlocksSoFar = granted, deadlocks
	}
	return out
}

// factor is how many points become one.
func factor(points, most int) int { return max(1, (points+most-1)/most) }

func (i *interval) join(p result.Point, length float64) {
	i.Grants = joined(i.Grants, i.Granted, p.Grants, p.Granted)
	i.Denials = joined(i.Denials, i.Denied, p.Denials, p.Denied)
	i.Seconds = p.Seconds
	i.Length += length
	i.Granted += p.Granted
	i.Denied += p.Denied
	i.Contended += p.Contended
	i.Failed += p.Failed
	i.RoundTrips += p.RoundTrips
	i.WALBytes = sum(i.WALBytes, p.WALBytes)
	i.TransactionIDs = sum(i.TransactionIDs, p.TransactionIDs)
	i.Deadlocks = sum(i.Deadlocks, p.Deadlocks)
}

func joined(a result.PointLatency, countA int64, b result.PointLatency, countB int64) result.PointLatency {
	if countA+countB == 0 {
		return result.PointLatency{}
	}
	share := float64(countB) / float64(countA+countB)
	return result.PointLatency{
		Mean: a.Mean*(1-share) + b.Mean*share,
		P50:  a.P50*(1-share) + b.P50*share,
		P99:  max(a.P99, b.P99),
		Max:  max(a.Max, b.Max),
	}
}

// sum is not known where one of both is not.
func sum(a, b *int64) *int64 {
	if a == nil || b == nil {
		return nil
	}
	n := *a + *b
	return &n
}
