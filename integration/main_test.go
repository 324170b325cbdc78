package integration

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/testcontainers/testcontainers-go/log"
)

func TestMain(m *testing.M) {
	runMoreAtOnce()
	log.SetDefault(log.NewNoopLogger()) // of testcontainers: what matters is in the errors
	code := m.Run()
	if err := stopServer(); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = max(code, 1)
	}
	_ = os.RemoveAll(built) // nothing, if built is empty
	os.Exit(code)
}

// runMoreAtOnce runs two tests per core instead of one, unless -parallel is given: most wait, for
// Postgres or for time to pass.
func runMoreAtOnce() {
	flag.Parse()
	const parallel = "test.parallel"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == parallel })
	if !given {
		_ = flag.Set(parallel, strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	}
}
