package recipe_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/assembly/backendtest"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler)) // the tests freeze connections, and the client would log each failure
	flag.Parse()
	_ = flag.Set("test.parallel", "12") // many in parallel, because the tests mostly wait for leases to end
	os.Exit(testenv.Main(m))
}

// rig is a backend with servers that the tests share.
type rig struct {
	backend backends.Entry
	servers backendtest.Servers
	local   lock.Locker
}

// newRig returns the backend with its servers.
func newRig(t *testing.T, name string) *rig {
	t.Helper()
	backend, ok := backends.Find(name)
	if !ok {
		t.Fatalf("no backend %q", name)
	}
	return &rig{backend: backend, servers: backendtest.Start(t, name), local: lock.NewLocal()}
}

// open returns a new instance with leases that are long enough for a busy machine to renew them.
// For a backend without servers, it always returns the same instance.
func (r *rig) open(t *testing.T) lock.Locker {
	t.Helper()
	return r.openOn(t, r.servers.Addrs(), lock.DefaultLease)
}

// openOverWires returns a new instance with short leases, and the wires to its servers.
func (r *rig) openOverWires(t *testing.T) (lock.Locker, backendtest.Wires) {
	t.Helper()
	wires, addrs := r.servers.OverWires(t)
	return r.openOn(t, addrs, locktest.ShortLease(r.backend.Name)), wires
}

func (r *rig) openOn(t *testing.T, addrs []string, lease time.Duration) lock.Locker {
	t.Helper()
	if len(r.servers) == 0 {
		return r.local
	}
	var (
		l           lock.Locker
		closeLocker func() error
	)
	testenv.AwaitSuccess(t, "the backend is opened", func() (err error) { // a busy server may be too slow for the timeouts of a backend
		l, closeLocker, err = backendtest.Open(t.Context(), r.backend.Name, addrs, lease)
		return err
	})
	t.Cleanup(func() { _ = closeLocker() })
	return l
}

// newName returns a lock name that no other test uses.
func newName() string { return "recipe/" + uuid.NewString() }

// promise is one promise of a recipe.
type promise struct {
	name string
	// notOffered has the backends that cannot keep the promise, and the reasons.
	notOffered map[string]string
	check      func(t *testing.T, r *rig)
}

// promises lists the promises of all recipes.
var promises = []promise{
	{name: "AllOrNone", check: allOrNone},
	{name: "NoDeadlock", check: noDeadlock},
	{name: "TokenPerName", check: tokenPerName},
	{name: "AtMostN", check: atMostN},
	{name: "SlotsAreNotReentrant", check: slotsAreNotReentrant},
	{name: "AbandonedWait", check: abandonedWait},
	{name: "StandbyTakesOver", notOffered: map[string]string{"local": oneProcess}, check: standbyTakesOver},
	{name: "HoldersAreListed", notOffered: map[string]string{"local": oneProcess, "redlock": noBoard, "mysql": noRows, "postgres": noRows}, check: holdersAreListed},
	{name: "ReadersShare", check: readersShare},
	{name: "WriterIsAlone", check: writerIsAlone},
	{name: "WriterIsNotOvertaken", check: writerIsNotOvertaken},
	{name: "DowngradeButNoUpgrade", check: downgradeButNoUpgrade},
	{name: "LeaderChanges", check: leaderChanges},
	{name: "LeaderIsReplaced", notOffered: map[string]string{"local": oneProcess}, check: leaderIsReplaced},
	{name: "TicksRise", notOffered: map[string]string{"local": oneProcess, "redlock": noBoard, "mysql": noRows, "postgres": noRows}, check: ticksRise},
	{name: "JobIsTakenOver", notOffered: map[string]string{"local": oneProcess, "redlock": noBoard, "mysql": noRows, "postgres": noRows}, check: jobIsTakenOver},
	{name: "ConfirmExtends", notOffered: map[string]string{"local": oneProcess}, check: confirmExtends},
}

const (
	oneProcess = "it locks within one process, whose locks die with it"
	noBoard    = "no single server has the truth"
	noRows     = "it stores only tokens in the database"
)

// TestRecipes checks every promise on every backend that can keep it. Unless the run is thorough,
// it leaves out MariaDB, whose locks differ from those of PostgreSQL only in their statements.
// TestConformance of package locktest covers these.
func TestRecipes(t *testing.T) {
	t.Parallel()
	for _, name := range backends.Names() {
		if name == "mysql" && !testenv.Thorough() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, name)
			for _, p := range promises {
				if p.notOffered[name] != "" {
					continue
				}
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					p.check(t, r)
				})
			}
		})
	}
}

// bounded returns a context that ends the test's requests if they hang.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	t.Cleanup(cancel)
	return ctx
}

// mustUnlock frees a lock that is still held.
func mustUnlock(t *testing.T, held interface{ Unlock(context.Context) error }) {
	t.Helper()
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// mustTimeOut checks that a call waits until its context ends.
func mustTimeOut(t *testing.T, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that must wait returned %v", err)
	}
}

// TestDocs checks that the tables in docs show which backend makes which promise. The first table
// has the promises of every backend, and the second has a column for each backend.
func TestDocs(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"../../../docs/recipes.md", "../../../docs/recipes.zh-CN.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "<!-- promises -->\n")
		tables, _, _ := strings.Cut(rest, "<!-- /promises -->")
		every, some, _ := strings.Cut(strings.TrimSpace(tables), "\n\n")
		if head, _, _ := strings.Cut(some, "\n"); !strings.HasSuffix(head, strings.Join(backends.Names(), " | ")+" |") {
			t.Errorf("%s has the head %q, want the backends %q", page, head, backends.Names())
		}
		notes := map[string]string{"": " ✓ |", oneProcess: " – (1) |", noBoard: " – (2) |", noRows: " – (3) |"}
		for _, p := range promises {
			table, marks := every, ""
			for _, name := range backends.Names() {
				if p.notOffered[name] != "" {
					table = some
				}
				marks += notes[p.notOffered[name]]
			}
			_, row, found := strings.Cut(table, "\n| `"+p.name+"` | ")
			row, _, _ = strings.Cut(row, "\n")
			if !found || table == some && !strings.HasSuffix(row, " |"+marks) {
				t.Errorf("%s has the row %q of %s, want the marks%s", page, row, p.name, marks)
			}
		}
		if rows := strings.Count(tables, "\n| `"); rows != len(promises) {
			t.Errorf("%s has %d rows, want %d promises", page, rows, len(promises))
		}
	}
}
