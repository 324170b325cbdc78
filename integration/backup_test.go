package integration

import (
	"cmp"
	"context"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// tool runs pg_dump or pg_restore of the server's own version on a database, and returns the dump.
func (s *testServer) tool(t *testing.T, database, name string, dump []byte, args ...string) []byte {
	t.Helper()
	file, prefix := filepath.Join(t.TempDir(), "dump"), ""
	if name == "pg_dump" {
		prefix = "--file="
	}
	if s.container == nil {
		folder, local := strings.CutPrefix(s.what, "from ")
		path := filepath.Join(folder, name)
		if _, err := exec.LookPath(path); !local || err != nil {
			t.Skipf("no %s of the version of the server %s", name, s.what)
		}
		must(t, os.WriteFile(file, dump, 0o600))
		out, err := exec.CommandContext(t.Context(), path, append(args, "--dbname="+s.urlOf(database), prefix+file)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args, err, out)
		}
		dump, err = os.ReadFile(file)
		must(t, err)
		return dump
	}
	file = "/tmp/" + filepath.Base(t.Name())
	must(t, s.container.CopyToContainer(t.Context(), dump, file, 0o644))
	at, err := url.Parse(s.urlOf(database))
	must(t, err)
	at.Host = "127.0.0.1:5432"
	code, out, err := s.container.Exec(t.Context(), append(append([]string{name}, args...), "--dbname="+at.String(), prefix+file), tcexec.Multiplexed())
	must(t, err)
	if code != 0 {
		said, _ := io.ReadAll(out)
		t.Fatalf("%s %s: exit code %d\n%s", name, args, code, said)
	}
	content, err := s.container.CopyFileFromContainer(t.Context(), file)
	must(t, err)
	defer content.Close() //nolint:errcheck // it was read
	dump, err = io.ReadAll(content)
	must(t, err)
	return dump
}

func databaseOf(pool *pgxpool.Pool) string { return pool.Config().ConnConfig.Database }

// fillEveryTable leaves a row in each table of the schema, by ways that a service goes.
func fillEveryTable(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, strategy := range strategies.All() {
		take(t, pool, strategy, "k", hours)
	}
	config := pglimit.Config{Name: "every", Limit: hours}
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, config)
	_, err := limiter.Do(t.Context(), pglimit.Request{Key: "answered", Tokens: 1, ID: "id"})
	must(t, err)
	config.Top = pglimit.TopFrom(pool, pglimit.TopConfig{})
	askTimes(t, newLimiter(t, pool, strategies.TokenBucket{}, config), map[string]int{"counted": 1})
	config.Top = nil
	config.Block = pglimit.Block{After: 1, Within: time.Hour, For: 1000 * time.Hour, Max: 1000 * time.Hour, Forget: 2000 * time.Hour}
	blocking := newLimiter(t, pool, strategies.TokenBucket{}, config)
	for range 4 {
		_, err := blocking.Allow(t.Context(), "blocked")
		must(t, err)
	}
	execute(t, pool, "select pglimit.acquire('every', 'k', 1)")
	execute(t, pool, "select pglimit.instance_lives(array['every'], array['me'], 0)")
	locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Interval: time.Hour})
	must(t, err)
	lock, err := locker.Lock(t.Context(), "every")
	must(t, err)
	must(t, lock.Unlock(t.Context()))
	execute(t, pool, `select pglimit.set_limit('every', '1/1h', key => 'k', note => 'why', by => 'ann')`)
	for table, rows := range rowsOf(t, pool) {
		if rows == "" {
			t.Errorf("%s is empty: fill it here", table)
		}
	}
}

// tablesOf schema pglimit, but for the record of what is migrated.
const tablesOf = `select relname::text from pg_class where relnamespace = 'pglimit'::regnamespace and relkind = 'r' and relname <> 'goose_db_version'`

// rowsOf each table, as text.
func rowsOf(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for _, table := range texts(t, pool, tablesOf) {
		rows[table] = strings.Join(texts(t, pool, `select t::text from pglimit.`+table+` t order by 1`), "\n")
	}
	return rows
}

func wantRows(t *testing.T, want map[string]string, pool *pgxpool.Pool) {
	t.Helper()
	got := rowsOf(t, pool)
	for table, rows := range want {
		if got[table] != rows {
			t.Errorf("%s has\n%s\nnot\n%s", table, got[table], rows)
		}
	}
}

// limitsUndated are the limits without who changed them when.
const limitsUndated = `select (to_jsonb(l) - 'changed_by' - 'changed_at')::text from pglimit.limits l order by 1`

func rowsExcept(rows map[string]string, tables ...string) map[string]string {
	rows = maps.Clone(rows)
	for _, table := range tables {
		delete(rows, table)
	}
	return rows
}

// An application with a constraint that needs btree_gist, too.
const application = `
	create extension if not exists btree_gist;
	create table booking (room text, during tstzrange, exclude using gist (room with =, during with &&));
	insert into booking values ('a', '[2026-01-01,2026-01-02)')`

var backups = map[string]struct {
	dump         []string
	prepareEmpty string   // what an empty database needs before
	overMigrated []string // further flags where the schema is there
	without      bool     // the dump has no schema of ours
	rowsOnly     bool
}{
	"all":           {overMigrated: []string{"--clean", "--if-exists"}},
	"without ours":  {dump: []string{"--exclude-schema=pglimit"}, without: true},
	"ours alone":    {dump: []string{"--schema=pglimit"}, prepareEmpty: `create extension btree_gist`, overMigrated: []string{"--clean", "--if-exists"}},
	"our rows only": {dump: []string{"--schema=pglimit", "--data-only", "--exclude-table=pglimit.goose_db_version"}, rowsOnly: true},
}

// Every kind of dump comes back, in one transaction, in an empty database and in a migrated one.
func TestBackupsCanBeRestored(t *testing.T) {
	t.Parallel()
	s := serverFor(t)
	source := newMigrated(t)
	execute(t, source, application)
	fillEveryTable(t, source)
	rows, catalog := rowsOf(t, source), exceptViews(catalogOf(t, source))
	for name, b := range backups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dump := s.tool(t, databaseOf(source), "pg_dump", nil, append(b.dump, "--format=custom")...)
			for target, pool := range map[string]*pgxpool.Pool{"empty": newPool(t, newDatabase(t), 4), "migrated": newMigrated(t)} {
				flags := []string{"--single-transaction"}
				switch {
				case target == "migrated":
					flags = append(flags, b.overMigrated...)
				case b.prepareEmpty != "":
					execute(t, pool, b.prepareEmpty)
				case b.rowsOnly:
					must(t, migrations.Up(t.Context(), pool))
				}
				s.tool(t, databaseOf(pool), "pg_restore", dump, flags...)
				must(t, migrations.Up(t.Context(), pool))
				diff(t, "restored over "+target, catalog, exceptViews(catalogOf(t, pool)))
				switch {
				case b.rowsOnly: // to the table of limits, it is a change, which it records
					wantRows(t, rowsExcept(rows, "limits", "limits_history"), pool)
					if !strings.Contains(rowsOf(t, pool)["limits_history"], rows["limits_history"]) ||
						!slices.Equal(texts(t, pool, limitsUndated), texts(t, source, limitsUndated)) {
						t.Errorf("restored over %s: %v", target, rowsOf(t, pool))
					}
				case !b.without:
					wantRows(t, rows, pool)
				}
				wantWorking(t, pool, !b.without)
			}
		})
	}
}

// exceptViews leaves out their texts: pg_dump names columns that need no name.
func exceptViews(catalog []string) []string {
	return slices.DeleteFunc(catalog, func(line string) bool { return strings.HasPrefix(line, "view ") })
}

// wantWorking denies what is used up, grants the rest, and goes down and up again.
func wantWorking(t *testing.T, pool *pgxpool.Pool, used bool) {
	t.Helper()
	for _, strategy := range strategies.All() {
		if d := take(t, pool, strategy, "k", hours); d.Allowed == used {
			t.Errorf("%s: %+v", strategy.Name(), d)
		}
		if d := take(t, pool, strategy, "another", hours); !d.Allowed {
			t.Errorf("%s: %+v", strategy.Name(), d)
		}
	}
	must(t, migrations.DownTo(t.Context(), pool, 0))
	must(t, migrations.Up(t.Context(), pool))
}

var majorOfImage = regexp.MustCompile(`:(\d+)`)

// A dump of this version comes back in the next one whose image is here.
func TestBackupMovesToANewerPostgres(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Getenv(envImage) == "" {
		t.Skip("starts a server")
	}
	s := serverFor(t)
	newer := s.newer(t)
	source := newMigrated(t)
	execute(t, source, application)
	fillEveryTable(t, source)
	dump := s.tool(t, databaseOf(source), "pg_dump", nil, "--format=custom")

	must(t, newer.create(t.Context(), "moved", "template0"))
	pool := newPool(t, newer.urlOf("moved"), 4)
	newer.tool(t, "moved", "pg_restore", dump, "--single-transaction")
	must(t, migrations.Up(t.Context(), pool))
	wantRows(t, rowsOf(t, source), pool)
	if n := query[int](t, pool, `select count(*) from booking`); n != 1 {
		t.Errorf("the application has %d rows", n)
	}
	wantWorking(t, pool, true)
}

// newer starts a server of the next major version, and skips where there is no image of one.
func (s *testServer) newer(t *testing.T) *testServer {
	t.Helper()
	image := cmp.Or(os.Getenv(envImage), pgserver.DefaultImage)
	ours, err := strconv.Atoi(strings.Split(s.version, ".")[0])
	must(t, err)
	for major := ours + 1; major <= ours+3; major++ {
		next := majorOfImage.ReplaceAllString(image, ":"+strconv.Itoa(major))
		if next == image && major != ours+1 || !imageIsHere(t.Context(), next) {
			continue
		}
		newer, err := runContainer(t.Context(), next)
		must(t, err)
		t.Cleanup(func() { must(t, newer.stop()) })
		must(t, newer.open(t.Context()))
		return newer
	}
	t.Skipf("no image of a PostgreSQL newer than %d, named like %s", ours, image)
	return nil
}

func imageIsHere(ctx context.Context, image string) bool {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false
	}
	defer func() { _ = provider.Close() }()
	ctx, cancel := context.WithTimeout(ctx, engineWithin)
	defer cancel()
	_, err = provider.Client().ImageInspect(ctx, image)
	return err == nil
}
