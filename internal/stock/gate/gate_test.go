package gate

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gatetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // the tests break connections on purpose
	os.Exit(testenv.Main(program{m}))
}

// program closes the shared clients before testenv stops their servers.
type program struct{ *testing.M }

func (p program) Run() int {
	defer shared.stop()
	return p.M.Run()
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// lockWait is long, because the machine may be busy.
const lockWait = 10 * time.Second

// makers has the functions that return two instances of a gate over one ledger's
// keys.
var makers = map[string]func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []gatetest.Gate{
	"Script": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []gatetest.Gate {
		return []gatetest.Gate{closed(t, script0(client, ledger)), closed(t, script0(client, ledger))}
	},
	// The two instances share one local locker, which stands for a distributed one.
	"Locked": func(_ testing.TB, client redis.UniversalClient, ledger uuid.UUID) []gatetest.Gate {
		locker := lock.NewLocal()
		return []gatetest.Gate{locked0(client, ledger, locker), locked0(client, ledger, locker)}
	},
	"Queue": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []gatetest.Gate {
		return []gatetest.Gate{closed(t, queue0(client, ledger)), closed(t, queue0(client, ledger))}
	},
	"Segmented": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []gatetest.Gate {
		gatherers := lock.NewLocal()
		return []gatetest.Gate{closed(t, segmented0(client, ledger, 3, gatherers)), closed(t, segmented0(client, ledger, 3, gatherers))}
	},
	"SegmentedLocked": func(t testing.TB, client redis.UniversalClient, ledger uuid.UUID) []gatetest.Gate {
		locker, gatherers := lock.NewLocal(), lock.NewLocal()
		return []gatetest.Gate{
			closed(t, segmentedLocked0(client, ledger, 2, locker, gatherers)),
			closed(t, segmentedLocked0(client, ledger, 2, locker, gatherers)),
		}
	},
}

// sharedLocker is a locker that outlives the gates.
type sharedLocker struct{ lock.Locker }

func (sharedLocker) Close() error { return nil }

// closed returns g and closes it when the test ends.
func closed[G Gate](t testing.TB, g G) G {
	t.Cleanup(g.Close)
	return g
}

// gates returns the instances with the faults of their store.
func gates(client redis.UniversalClient, ledger uuid.UUID, instances ...gatetest.Gate) gatetest.Gates {
	c := NewCounter(client, ledger, Layout{})
	// loseCount deletes the counts of the SKU and of its segments.
	loseCount := func(ctx context.Context, sku stock.SKU) error {
		var errs []error
		for _, name := range withSegments(sku) {
			errs = append(errs, client.HDel(ctx, c.keys(name).count, string(name)).Err())
		}
		return errors.Join(errs...)
	}
	// empty also deletes their records and their burned takes.
	empty := func(ctx context.Context, sku stock.SKU) error {
		errs := []error{loseCount(ctx, sku)}
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
	if _, ok := instances[0].(countedSegmented); ok {
		const reason = "a take that is sent twice, which the service never does, may be cut twice if units came back in between to the segment that it asks first"
		notOffered = map[string]string{"SameTakeAtOnce": reason, "AgreesWithModel": reason}
	}
	return gatetest.Gates{Instances: instances, NotOffered: notOffered, Empty: empty, LoseCount: loseCount}
}

// withSegments returns the SKU and three segments. No test uses more.
func withSegments(sku stock.SKU) []stock.SKU {
	return []stock.SKU{sku, segmentOf(sku, 0), segmentOf(sku, 1), segmentOf(sku, 2)}
}

// conforming has the kinds of Redis on which TestConformance checks each gate unless the run is
// thorough. The gate of the default strategy runs on a server and on a cluster. Each other gate
// runs on one of the two, so that both have gates with and without locks and segments. The
// in-process Redis is slow, and Sentinels give the client a single server.
var conforming = map[string][]string{
	"Script": {"Redis", "Cluster"}, "Locked": {"Cluster"}, "Queue": {"Redis"}, "Segmented": {"Redis"}, "SegmentedLocked": {"Cluster"},
}

// TestConformance checks every gate on every kind of Redis. Unless the run is thorough, it leaves
// out the pairs that conforming does not list.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, newGates := range makers {
		for _, kind := range kinds {
			if !slices.Contains(conforming[name], kind) && !testenv.Thorough() {
				continue
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				client, ledger := shared.client(t, kind), uuid.New()
				gatetest.Run(t, gates(client, ledger, newGates(t, client, ledger)...))
			})
		}
	}
}

// TestReadWriteOneCallAtATime checks that the gate that oversells keeps the promises whose checks
// make one call at a time. Unless the run is thorough, it uses one server only, because
// TestConformance runs the same scripts under locks on a cluster.
func TestReadWriteOneCallAtATime(t *testing.T) {
	t.Parallel()
	for _, kind := range thoroughly("Redis") {
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
					if err := gatetest.Find(promise).Check(t.Context(), gates); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// meeting returns a function that blocks its first caller until the second one calls.
func meeting() func() {
	var (
		calls atomic.Int64
		both  = make(chan struct{})
	)
	return func() {
		switch calls.Add(1) {
		case 1:
			<-both
		case 2:
			close(both)
		}
	}
}

// TestOverselling checks that NoOversell, which the sound gates pass, detects the broken ones. Two
// takes always overlap between reading and writing, so one of the two updates is lost on any
// machine. Unless the run is thorough, it uses one server, because the fault is in the gates.
func TestOverselling(t *testing.T) {
	t.Parallel()
	for _, broken := range []struct {
		name      string
		instances func(client redis.UniversalClient, ledger uuid.UUID, between func()) []gatetest.Gate
	}{
		{"none", func(client redis.UniversalClient, ledger uuid.UUID, between func()) []gatetest.Gate {
			g := readWrite0(client, ledger)
			g.between = between
			return []gatetest.Gate{g}
		}},
		{"mutex with two instances", func(client redis.UniversalClient, ledger uuid.UUID, between func()) []gatetest.Gate {
			a, b := mutex0(client, ledger), mutex0(client, ledger)
			a.between, b.between = between, between
			return []gatetest.Gate{a, b}
		}},
	} {
		for _, kind := range thoroughly("Redis") {
			t.Run(broken.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				client, ledger := shared.client(t, kind), uuid.New()
				gates := gates(client, ledger, broken.instances(client, ledger, meeting())...)
				err := gatetest.Find("NoOversell").Check(t.Context(), gates)
				if err == nil || !strings.HasPrefix(err.Error(), "oversold") {
					t.Errorf("overselling was not detected: %v", err)
				}
			})
		}
	}
}

func orderOf(sku stock.SKU, units int64) stock.Deduction {
	return stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1",
		Lines: []stock.Line{{SKU: sku, Quantity: units}},
	}
}

func levelOf(t *testing.T, g gatetest.Gate, sku stock.SKU) stock.Level {
	t.Helper()
	levels, err := g.Level(t.Context(), sku)
	if err != nil {
		t.Fatal(err)
	}
	return levels[0]
}
