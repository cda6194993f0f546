package gate

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/stocktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(rushEnv) != "" {
		os.Exit(rushAsProcess(os.Getenv(rushEnv)))
	}
	if os.Getenv(stoppedEnv) != "" {
		os.Exit(stoppedProcess(os.Getenv(stoppedEnv)))
	}
	redis.SetLogger(quiet{}) // connections are broken on purpose here
	os.Exit(testenv.Main(program{m}))
}

// program closes the shared clients before their servers go.
type program struct{ *testing.M }

func (p program) Run() int {
	defer shared.stop()
	return p.M.Run()
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// lockWait is long: the tests' machine may be busy.
const lockWait = 10 * time.Second

// makers return two instances of a gate over one ledger's keys.
var makers = map[string]func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []stock.Gate{
	"Script": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []stock.Gate {
		return []stock.Gate{closed(t, script0(client, ledger)), closed(t, script0(client, ledger))}
	},
	// The locker is local, so the instances share it as if it were not.
	"Locked": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []stock.Gate {
		locker := lock.NewLocal()
		return []stock.Gate{
			closed(t, NewLocked(readWrite0(client, ledger), locker, lockWait, true)),
			closed(t, NewLocked(readWrite0(client, ledger), locker, lockWait, true)),
		}
	},
	"Segmented": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []stock.Gate {
		return segmented(t, client, ledger, 3, script0(client, ledger), script0(client, ledger))
	},
	"SegmentedLocked": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []stock.Gate {
		locker := lock.NewLocal()
		return segmented(t, client, ledger, 2,
			NewLocked(readWrite0(client, ledger), locker, lockWait, true),
			NewLocked(readWrite0(client, ledger), locker, lockWait, true))
	},
}

// segmented divides the gates, whose gathers share a lock.
func segmented(t testing.TB, client redis.UniversalClient, ledger uuid.UUID, segments int, inner ...stock.Gate) []stock.Gate {
	locker := lock.NewLocal()
	var gates []stock.Gate
	for _, g := range inner {
		gates = append(gates, closed(t, NewSegmented(g, client, ledger, segments, locker)))
	}
	return gates
}

type closer interface {
	stock.Gate
	Close()
}

func closed(t testing.TB, g closer) stock.Gate {
	t.Cleanup(g.Close)
	return g
}

// gates has the instances and the faults of their store.
func gates(client redis.UniversalClient, ledger uuid.UUID, instances ...stock.Gate) stocktest.Gates {
	c := newCounts(client, ledger)
	// forgetCount deletes the counts of the SKU and of its segments.
	forgetCount := func(ctx context.Context, sku stock.SKU) error {
		var errs []error
		for _, name := range withSegments(sku) {
			errs = append(errs, client.HDel(ctx, c.keys(name).count, string(name)).Err())
		}
		return errors.Join(errs...)
	}
	// forget deletes all that there is of them.
	forget := func(ctx context.Context, sku stock.SKU) error {
		errs := []error{forgetCount(ctx, sku)}
		for _, name := range withSegments(sku) {
			keys := c.keys(name)
			records, err := client.HKeys(ctx, keys.flight).Result()
			takes, burnedErr := client.ZRange(ctx, keys.burned, 0, -1).Result()
			errs = append(errs, err, burnedErr)
			for _, field := range slices.DeleteFunc(append(records, takes...), func(field string) bool { return !strings.HasPrefix(field, string(name)+" ") }) {
				errs = append(errs, client.HDel(ctx, keys.flight, field).Err(), client.ZRem(ctx, keys.burned, field).Err())
			}
		}
		return errors.Join(errs...)
	}
	var notOffered map[string]string
	if _, ok := instances[0].(*Segmented); ok {
		const once = "a take that comes again, which the service never sends, may be cut in another segment where units came back to its own meanwhile"
		notOffered = map[string]string{"SameTakeAtOnce": once, "AgreesWithModel": once}
	}
	return stocktest.Gates{
		Instances:  instances,
		NotOffered: notOffered,
		Empty:      forget,
		LoseCount:  forgetCount,
	}
}

// withSegments are the SKU and its segments, as many as any test has.
func withSegments(sku stock.SKU) []stock.SKU {
	return []stock.SKU{sku, segment(sku, 0), segment(sku, 1), segment(sku, 2)}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, newGates := range makers {
		for _, kind := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				client, ledger := shared.client(t, kind), uuid.New()
				stocktest.RunGate(t, gates(client, ledger, newGates(t, client, ledger)...))
			})
		}
	}
}

// TestReadWriteKeepsWhatNeedsNoAtomicity: the gate that oversells is right as
// long as one call comes after the other.
func TestReadWriteKeepsWhatNeedsNoAtomicity(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			client, ledger := shared.client(t, kind), uuid.New()
			gates := gates(client, ledger, readWrite0(client, ledger), readWrite0(client, ledger))
			for _, promise := range []string{
				"TakeCutsAndRecords", "LastUnit", "AgreesWithModel", "SameTakeTwice", "TwinInFlight", "SoldOutTakesNothing",
				"NotFilledTakesNothing", "GiveOnce", "GiveAtOnce", "GiveBeforeTake", "GiveOfAnothersTake",
				"SettleForgets", "SettleOfAnothersTake", "EmptiedStoreFailsClosed", "LostCountInventsNothing",
				"InFlightHasAllLines", "InFlightByAge",
			} {
				t.Run(promise, func(t *testing.T) {
					t.Parallel()
					if err := stocktest.FindGatePromise(promise).Convict(t.Context(), gates); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// meeting holds its first two callers until both are there.
func meeting() func() {
	var (
		mu   sync.Mutex
		came int
		both = make(chan struct{})
	)
	return func() {
		mu.Lock()
		came++
		first := came == 1
		if came == 2 {
			close(both)
		}
		mu.Unlock()
		if first {
			<-both
		}
	}
}

// TestOverselling: the checker that acquits the sound gates convicts the
// broken ones. Two takes are made to meet between reading and writing, so that
// one of them is lost whatever the machine does.
func TestOverselling(t *testing.T) {
	t.Parallel()
	for _, broken := range []struct {
		name      string
		instances func(client redis.UniversalClient, ledger uuid.UUID, between func()) []stock.Gate
	}{
		{"none", func(client redis.UniversalClient, ledger uuid.UUID, between func()) []stock.Gate {
			g := readWrite0(client, ledger)
			g.between = between
			return []stock.Gate{g}
		}},
		{"mutex with two instances", func(client redis.UniversalClient, ledger uuid.UUID, between func()) []stock.Gate {
			a, b := readWrite0(client, ledger), readWrite0(client, ledger)
			a.between, b.between = between, between
			return []stock.Gate{NewLocked(a, lock.NewLocal(), lockWait, false), NewLocked(b, lock.NewLocal(), lockWait, false)}
		}},
	} {
		for _, kind := range kinds {
			t.Run(broken.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				client, ledger := shared.client(t, kind), uuid.New()
				gates := gates(client, ledger, broken.instances(client, ledger, meeting())...)
				err := stocktest.FindGatePromise("NoOversell").Convict(t.Context(), gates)
				if err == nil || !strings.HasPrefix(err.Error(), "oversold") {
					t.Errorf("acquitted: %v", err)
				}
			})
		}
	}
}

// TestLostUpdate is the same fault by itself: one unit, two who read it, both
// accepted.
func TestLostUpdate(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	g := readWrite0(client, ledger)
	g.between = meeting()
	if err := g.Fill(t.Context(), "a", 1, 1); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if _, err := g.Take(t.Context(), orderOf("a", 1)); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	want := stock.Level{SKU: "a", Filled: true, Epoch: 1, Available: 0, InFlight: 2}
	if level := levelOf(t, g, "a"); level != want {
		t.Errorf("got %+v, want %+v", level, want)
	}
}

func orderOf(sku stock.SKU, units int64) stock.Deduction {
	return stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1",
		Lines: []stock.Line{{SKU: sku, Quantity: units}},
	}
}

func levelOf(t *testing.T, g stock.Gate, sku stock.SKU) stock.Level {
	t.Helper()
	levels, err := g.Level(t.Context(), sku)
	if err != nil {
		t.Fatal(err)
	}
	return levels[0]
}
