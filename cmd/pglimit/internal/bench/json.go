package bench

import (
	"encoding/json"
	"io"
	"math"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// The JSON of a report. Fields are added, never renamed: scripts read them.
type (
	jsonReport struct {
		Parameters  jsonParameters `json:"parameters"`
		Server      jsonServer     `json:"server"`
		Interrupted bool           `json:"interrupted"`
		Runs        []jsonRun      `json:"runs"`
	}

	jsonParameters struct {
		Loop            string  `json:"loop"` // closed or open
		RPS             float64 `json:"rps,omitempty"`
		Arrivals        string  `json:"arrivals,omitempty"`
		Callers         int     `json:"callers"`
		Instances       int     `json:"instances"`
		Conns           int     `json:"conns"`
		Keys            int     `json:"keys"`
		Distribution    string  `json:"distribution"`
		Limit           string  `json:"limit"`
		Cost            int64   `json:"cost"`
		Durability      string  `json:"durability"`
		TimeoutSeconds  float64 `json:"timeout_seconds"`
		WarmupSeconds   float64 `json:"warmup_seconds"`
		DurationSeconds float64 `json:"duration_seconds"`
		AuditDecisions  int     `json:"audit_decisions"`

		// The stages as asked for. 0: as the library does.
		Combining        bool    `json:"combining"`
		Lanes            int     `json:"lanes"`
		MaxWaiting       int     `json:"max_waiting"`
		Memory           bool    `json:"memory"`
		DenialTTLSeconds float64 `json:"denial_ttl_seconds"`
		DenialKeys       int     `json:"denial_keys"`
		Leases           bool    `json:"leases"`
		LeaseTTLSeconds  float64 `json:"lease_ttl_seconds"`

		Seed uint64 `json:"seed"`
	}

	jsonServer struct {
		Version string `json:"version"`
		Source  string `json:"source"`
	}

	jsonRun struct {
		Strategy                  string            `json:"strategy"`
		Limit                     string            `json:"limit"`
		Cost                      int64             `json:"cost"`
		Storage                   *string           `json:"storage"` // of the table: logged, unlogged, or null: not known
		Seconds                   float64           `json:"seconds"`
		Decisions                 int64             `json:"decisions"`
		DecisionsPerSecond        float64           `json:"decisions_per_second"`
		Latency                   jsonLatency       `json:"latency_us"`
		Allowed                   int64             `json:"allowed"`
		Denied                    int64             `json:"denied"`
		Contended                 int64             `json:"contended"`
		Errors                    map[string]int64  `json:"errors"`
		FirstErrors               map[string]string `json:"first_errors,omitempty"`
		Stages                    jsonStages        `json:"stages"`
		Deadlocks                 *int64            `json:"deadlocks"` // null here and in the next four: not known
		WALBytesPerDecision       *float64          `json:"wal_bytes_per_decision"`
		TransactionIDsPerDecision *float64          `json:"transaction_ids_per_decision"`
		DeadTuples                *int64            `json:"dead_tuples"`
		HOTUpdateRatio            *float64          `json:"hot_update_ratio"` // null also: there were no updates
		StatisticsComplete        bool              `json:"statistics_complete"`
		Audit                     *jsonAudit        `json:"audit"` // null: switched off
	}

	jsonLatency struct {
		P50  float64 `json:"p50"`
		P90  float64 `json:"p90"`
		P99  float64 `json:"p99"`
		P999 float64 `json:"p999"`
		Max  float64 `json:"max"`
	}

	// jsonStages says which stages the run had, what each did, and what that came to.
	jsonStages struct {
		Combining             bool    `json:"combining"`
		Memory                bool    `json:"memory"`
		Leases                bool    `json:"leases"`
		RoundTripsPerDecision float64 `json:"round_trips_per_decision"` // trips for leases included
		RememberedRatio       float64 `json:"remembered_ratio"`         // decisions from the memory of denials
		LeasedRatio           float64 `json:"leased_ratio"`             // decisions from a lease
		CallersPerRoundTrip   float64 `json:"callers_per_round_trip"`
		RequestsPerRoundTrip  float64 `json:"requests_per_round_trip"` // identical requests of several callers are one
		Remembered            int64   `json:"remembered"`
		Leased                int64   `json:"leased"`
		Decided               int64   `json:"decided"` // by Postgres
		RoundTrips            int64   `json:"round_trips"`
		Requests              int64   `json:"requests"`
		LeaseTrips            int64   `json:"lease_trips"`
		LeasedTokens          int64   `json:"leased_tokens"`
		UnspentTokens         int64   `json:"unspent_tokens"` // of the leased tokens
		PassedOnTokens        int64   `json:"passed_on_tokens"`
		GivenBackTokens       int64   `json:"given_back_tokens"`
		LostTokens            int64   `json:"lost_tokens"`
	}

	jsonAudit struct {
		Verdict             string  `json:"verdict"`
		OverTokens          int64   `json:"over_tokens"`
		Worst               string  `json:"worst,omitempty"`
		DenialsNotDue       int64   `json:"denials_not_due"`
		Audited             int64   `json:"audited"`
		AuditedGrants       int64   `json:"audited_grants"`
		AuditedDenials      int64   `json:"audited_denials"`
		JudgedDenials       int64   `json:"judged_denials"`
		DenialSampling      float64 `json:"denial_sampling"` // the audited denials are 1 of so many
		Complete            bool    `json:"complete"`
		KeysWithLostAnswers int     `json:"keys_with_lost_answers"`
	}
)

// WriteJSON writes the report as one indented JSON object.
func (r Report) WriteJSON(w io.Writer) error {
	c := r.Config
	out := jsonReport{
		Parameters: jsonParameters{
			Loop: "closed", Callers: c.Callers, Instances: c.Instances, Conns: c.Conns,
			Keys: c.Keys, Distribution: c.Distribution, Limit: c.Limit.String(), Cost: c.Cost,
			Durability: c.Durability.String(), TimeoutSeconds: c.Timeout.Seconds(),
			WarmupSeconds: c.Warmup.Seconds(), DurationSeconds: c.Duration.Seconds(),
			AuditDecisions: c.AuditDecisions, Seed: c.Seed,
			Combining: !c.NoCombining, Lanes: c.Lanes, MaxWaiting: c.MaxWaiting,
			Memory: !c.NoMemory, DenialTTLSeconds: c.DenialTTL.Seconds(), DenialKeys: c.DenialKeys,
			Leases: c.Leases, LeaseTTLSeconds: c.LeaseTTL.Seconds(),
		},
		Server:      jsonServer(r.Server),
		Interrupted: r.Interrupted,
		Runs:        make([]jsonRun, 0, len(r.Runs)),
	}
	if c.RPS > 0 {
		out.Parameters.Loop, out.Parameters.RPS, out.Parameters.Arrivals = "open", c.RPS, c.Arrivals
	}
	for _, run := range r.Runs {
		out.Runs = append(out.Runs, run.json(c))
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(out)
}

func (r Result) json(c Config) jsonRun {
	out := jsonRun{
		Strategy: r.Strategy, Limit: r.Limit, Cost: r.Cost,
		Seconds: round(r.Elapsed.Seconds(), 3), Decisions: r.Decisions, DecisionsPerSecond: round(r.DecisionsPerSecond, 1),
		Latency: jsonLatency{
			microseconds(r.Latency.P50), microseconds(r.Latency.P90), microseconds(r.Latency.P99),
			microseconds(r.Latency.P999), microseconds(r.Latency.Max),
		},
		Allowed: r.Allowed, Denied: r.Denied, Contended: r.Contended, Errors: r.Errors, FirstErrors: r.FirstErrors,
		Stages: r.Stages.json(),
	}
	if r.Storage != "" {
		out.Storage = &r.Storage
	}
	if out.Errors == nil {
		out.Errors = map[string]int64{}
	}
	if s := r.Server; s != nil {
		out.Deadlocks, out.DeadTuples, out.StatisticsComplete = &s.Deadlocks, &s.DeadTuples, !s.Incomplete
		out.WALBytesPerDecision = new(round(r.perDecision(s.WALBytes), 3))
		out.TransactionIDsPerDecision = new(round(r.perDecision(s.TransactionIDs), 6))
		if ratio, ok := s.HOTRatio(); ok {
			out.HOTUpdateRatio = new(round(ratio, 6))
		}
	}
	if c.AuditDecisions > 0 {
		out.Audit = &jsonAudit{
			Verdict: r.Verdict(), OverTokens: r.Audit.OverTokens, Worst: r.Audit.Worst, DenialsNotDue: r.Audit.DenialsNotDue,
			Audited: r.Audit.Audited, AuditedGrants: r.Audit.Grants, AuditedDenials: r.Audit.Denials,
			JudgedDenials: r.Audit.JudgedDenials, DenialSampling: round(r.Audit.DenialSampling, 3),
			Complete: r.Audit.Complete, KeysWithLostAnswers: r.Audit.KeysWithLostAnswers,
		}
	}
	return out
}

func (s Stages) json() jsonStages {
	return jsonStages{
		Combining: s.Combining, Memory: s.Memory, Leases: s.Leases,
		RoundTripsPerDecision: round(s.TripsPerDecision(), 6), RememberedRatio: round(s.RememberedShare(), 6), LeasedRatio: round(s.LeasedShare(), 6),
		CallersPerRoundTrip: round(s.CallersPerTrip(), 3), RequestsPerRoundTrip: round(s.RequestsPerTrip(), 3),
		Remembered: s.Denied[pglimit.FromMemory], Leased: s.Allowed[pglimit.FromLease], Decided: s.decided(), RoundTrips: s.RoundTrips, Requests: s.Requests,
		LeaseTrips: s.LeaseTrips, LeasedTokens: s.LeasedTokens, UnspentTokens: s.UnspentTokens,
		PassedOnTokens: s.PassedOnTokens, GivenBackTokens: s.GivenBack, LostTokens: s.LostTokens,
	}
}

// perDecision is a number per decision, or 0 if there was none.
func (r Result) perDecision(n int64) float64 {
	if r.Decisions == 0 {
		return 0
	}
	return float64(n) / float64(r.Decisions)
}

func microseconds(d time.Duration) float64 { return round(float64(d)/1000, 1) }

func round(f float64, digits int) float64 {
	unit := math.Pow10(digits)
	return math.Round(f*unit) / unit
}
