package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// envCitusCrash is a shell command that crashes a worker of the cluster and starts it again.
const envCitusCrash = "PGLIMIT_TEST_CITUS_CRASH"

// 64 callers on each node and 64 who go straight take from the same keys, by everything that takes, under limits that change, while shards
// move and, if a command for that is given, a worker crashes: no key gets more than its limit. A denial may be undue: calls that
// failed may have taken, and what was reserved comes back.
func TestCitusSoak(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	limit, lower := pglimit.PerSecond(60).WithBurst(10), pglimit.PerSecond(40).WithBurst(6)
	config := pglimit.Config{Name: "test", Limit: limit, Timeout: 5 * time.Second, Memory: pglimit.Memory{Off: true}}
	leased := pglimit.Config{Name: "leased", Limit: limit, Timeout: 5 * time.Second, Leases: pglimit.Leases{On: true}}
	limiters := []*pglimit.Limiter{newOnNodes(t, pools[0], config)}
	leasing := []*pglimit.Limiter{newOnNodes(t, pools[0], leased)}
	for _, pool := range pools {
		limiters = append(limiters, newCitusLimiter(t, pool, config))
		leasing = append(leasing, newCitusLimiter(t, pool, leased))
	}
	untilStraight(t, limiters[0])
	histories := make([]audit.Histories, 64*len(limiters))
	var failed atomic.Int64
	var work sync.WaitGroup
	crashes := os.Getenv(envCitusCrash)
	ctx := soon(t, 10*time.Second)
	if crashes != "" {
		ctx = soon(t, 40*time.Second)
	}
	for i := range histories {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 3))
			l, history := limiters[i%len(limiters)], &histories[i]
			for n := 0; ctx.Err() == nil; n++ {
				key, other := "k"+strconv.Itoa(random.IntN(40)), "k"+strconv.Itoa(40+random.IntN(40))
				r := pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: 1 + random.Int64N(2)}
				r.Unit = r.Tokens
				if time.Now().Second()%4 == 0 {
					r.Limit = lower
				}
				record := func(d pglimit.Decision) {
					history.Add(d.Key, audit.Event{At: d.At.Add(d.Delay).UnixNano(), Granted: d.Granted}) // of a wait: when they were due
				}
				var d pglimit.Decision
				var err error
				switch random.IntN(8) {
				case 0:
					var g pglimit.Group
					second := r
					second.Key = other
					if g, err = l.DoAll(t.Context(), r, second); err == nil && g.Allowed {
						record(g.Decisions[0])
						record(g.Decisions[1])
					}
				case 1:
					r.ID, r.IDTTL = fmt.Sprintf("%d %d", i, n), time.Hour
					if d, err = l.Do(t.Context(), r); err == nil {
						record(d)
					}
				case 2:
					waiting, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					if d, err = l.Wait(waiting, key); err == nil {
						record(d)
					} else if waiting.Err() != nil {
						err = nil
					}
					cancel()
				case 3:
					if d, err = leasing[i%len(leasing)].Allow(t.Context(), key); err == nil && !d.Allowed && d.Granted > 0 {
						t.Errorf("%+v", d)
					}
				case 4: // what is given back is not counted
					if d, err = l.Do(t.Context(), r); err == nil && d.Allowed {
						if err = l.Refund(t.Context(), d, d.Granted); err != nil {
							record(d)
						}
					}
				default:
					if d, err = l.Do(t.Context(), r); err == nil {
						record(d)
					}
				}
				if err != nil {
					failed.Add(1)
					<-time.After(20 * time.Millisecond) // a node that is down is asked no faster
				}
			}
		})
	}
	moves := 0
	for i := 0; ctx.Err() == nil; i++ {
		if i == 2 && crashes != "" {
			if out, err := exec.CommandContext(t.Context(), "sh", "-c", crashes).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
		mode := []string{"block_writes", "force_logical"}[i%2]
		_, err := pools[0].Exec(t.Context(), `
			select citus_move_shard_placement(s.shardid, a.nodename, a.nodeport, b.nodename, b.nodeport, '`+mode+`')
			from (select s.shardid, p.groupid from pg_dist_shard s join pg_dist_placement p using (shardid)
				where s.logicalrelid = 'pglimit.token_bucket'::regclass order by random() limit 1) s
			join pg_dist_node a on a.groupid = s.groupid join pg_dist_node b on b.groupid <> s.groupid and b.shouldhaveshards`)
		if err == nil {
			moves++
		} else if crashes == "" {
			t.Error(mode, err)
		}
	}
	work.Wait()
	var all audit.Histories
	for i := range histories {
		all.Merge(&histories[i])
	}
	report := all.Check(limit, lower)
	t.Logf("%d moves, %d calls failed, %d of %d went straight: %v", moves, failed.Load(), limiters[0].Stats().StraightTrips, limiters[0].Stats().RoundTrips, report)
	if !report.OK() || report.Granted == 0 || crashes == "" && failed.Load() > report.Grants/20 {
		t.Errorf("%d calls failed: %v", failed.Load(), report)
	}
}
