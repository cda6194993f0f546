package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// eachGate runs the test on every gate and every kind of Redis. Unless the run is thorough, only
// the default gate runs in the in-process Redis and behind Sentinels.
func eachGate(t *testing.T, test func(t *testing.T, client redis.UniversalClient, open func() counted)) {
	locker := lock.NewLocal()
	for _, kind := range kinds {
		for name, open := range map[string]func(redis.UniversalClient, uuid.UUID) counted{
			"Script":    func(c redis.UniversalClient, l uuid.UUID) counted { return script0(c, l).any() },
			"ReadWrite": func(c redis.UniversalClient, l uuid.UUID) counted { return readWrite0(c, l).any() },
			"Locked":    func(c redis.UniversalClient, l uuid.UUID) counted { return locked0(c, l, locker).any() },
			"Queue":     func(c redis.UniversalClient, l uuid.UUID) counted { return queue0(c, l).any() },
			"Segmented": func(c redis.UniversalClient, l uuid.UUID) counted { return segmented0(c, l, 3, locker).any() },
		} {
			if name != "Script" && !slices.Contains(kinds[:2], kind) && !testenv.Thorough() {
				continue
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				client, ledger := shared.client(t, kind), uuid.New()
				test(t, client, func() counted { return closed(t, open(client, ledger)) })
			})
		}
	}
}

// epochIn returns epoch n of the generation.
func epochIn(g stock.Generation, n int64) int64 {
	first, _ := g.Epochs()
	return first + n
}

// load loads the generation and makes the gate use it.
func load(t *testing.T, g *Counter, to stock.Generation) {
	t.Helper()
	if err := g.Load(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	g.Use(to)
}

// TestUnloadedGeneration checks that a gate can do nothing under a generation that
// was not loaded. Only the instance that raised a generation may load it.
func TestUnloadedGeneration(t *testing.T) {
	t.Parallel()
	eachGate(t, func(t *testing.T, _ redis.UniversalClient, open func() counted) {
		const unloaded = 1_000_003
		ctx, g, d := t.Context(), open(), orderOf("a", 1)
		taken := stock.Take{Deduction: d, Receipt: stock.Receipt{{Epoch: epochIn(unloaded, 1)}}}
		g.Use(unloaded)
		_, take := g.Take(ctx, d)
		_, list := g.InFlight(ctx, 10, "a")
		for call, err := range map[string]error{
			"Take": take, "InFlight": list,
			"Settle": g.Settle(ctx, taken),
			"Give":   g.Give(ctx, taken),
			"Fill":   g.Fill(ctx, "a", epochIn(unloaded, 1), 5),
			"Adjust": g.Adjust(ctx, stock.Change{SKU: "a", Epoch: epochIn(unloaded, 1), Number: 1, Delta: 1}),
		} {
			if !errors.Is(err, stock.ErrNoGeneration) {
				t.Errorf("%s: got %v", call, err)
			}
		}
		if loaded, err := g.Loaded(ctx); loaded || err != nil {
			t.Errorf("loaded: %v, %v", loaded, err)
		}
		if level := levelOf(t, g, "a"); level.Filled {
			t.Errorf("level %+v", level)
		}
	})
}

// TestLoadInOneRoundTrip checks that Load waits for one answer only, whatever the number of
// scripts.
func TestLoadInOneRoundTrip(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	g := NewCounter(client, uuid.New(), Layout{})
	var trips atomic.Int64
	client.AddHook(faults.Around(func(ctx context.Context, _ []redis.Cmder, run func(context.Context) error) error {
		trips.Add(1)
		return run(ctx)
	}))
	load(t, g, 7)
	if n := trips.Load(); n != 1 {
		t.Errorf("%d round trips", n)
	}
	if loaded, err := g.Loaded(t.Context()); !loaded || err != nil {
		t.Errorf("loaded: %v, %v", loaded, err)
	}
}

// TestGenerationsInTurn checks that a count of an earlier generation is treated as not filled. An
// instance of an earlier generation must not be able to change a count of a later one.
func TestGenerationsInTurn(t *testing.T) {
	t.Parallel()
	eachGate(t, func(t *testing.T, _ redis.UniversalClient, open func() counted) {
		ctx, before, after := t.Context(), open(), open()
		load(t, before.Counter, 2)
		load(t, after.Counter, 3)
		if loaded, err := after.Loaded(ctx); !loaded || err != nil {
			t.Errorf("loaded: %v, %v", loaded, err)
		}
		fill(t, before, "a", epochIn(2, 1), 5)
		first := mustTake(t, before, orderOf("a", 1))

		if _, err := after.Take(ctx, orderOf("a", 1)); !errors.Is(err, stock.ErrNotFilled) {
			t.Errorf("an earlier count: %v", err)
		}
		if level := levelOf(t, after, "a"); level.Filled || level.Epoch != epochIn(2, 1) {
			t.Errorf("an earlier count: %+v", level)
		}
		if _, err := before.Take(ctx, orderOf("a", 1)); err != nil {
			t.Errorf("the earlier generation, before the count is refilled: %v", err)
		}

		fill(t, after, "a", epochIn(3, 1), 5)
		if _, err := before.Take(ctx, orderOf("a", 1)); !errors.Is(err, stock.ErrLaterGeneration) {
			t.Errorf("a later count: %v", err)
		}
		if err := before.Fill(ctx, "a", epochIn(2, 2), 9); !errors.Is(err, stock.ErrStaleEpoch) || err.Error() != stock.Refuse("a", stock.ErrStaleEpoch).Error() {
			t.Errorf("filling a later count: %v", err)
		}
		for call, err := range map[string]error{
			"Give":   before.Give(ctx, first),
			"Settle": before.Settle(ctx, first),
			"Adjust": before.Adjust(ctx, stock.Change{SKU: "a", Epoch: epochIn(2, 1), Number: 1, Delta: 1}),
		} {
			if err != nil {
				t.Errorf("%s: %v", call, err)
			}
		}
		if level := levelOf(t, before, "a"); level.Filled || level.Epoch != epochIn(3, 1) {
			t.Errorf("a later count: %+v", level)
		}
		wantLevel(t, after, stock.Level{SKU: "a", Epoch: epochIn(3, 1), Available: 5})
		addition := stock.Change{SKU: "a", Epoch: epochIn(3, 1), Number: 1, Delta: 2}
		if err := before.Adjust(ctx, addition); !errors.Is(err, stock.ErrNotFilled) {
			t.Errorf("a later generation's addition: %v", err)
		}
		wantLevel(t, after, stock.Level{SKU: "a", Epoch: epochIn(3, 1), Available: 5})
		if err := after.Adjust(ctx, addition); err != nil {
			t.Error(err)
		}
		wantLevel(t, after, stock.Level{SKU: "a", Epoch: epochIn(3, 1), Available: 7})
	})
}

// TestRecordsOfAnEarlierGeneration checks that a scan neither lists nor keeps the records of an
// earlier generation, even if its counts were not filled again.
func TestRecordsOfAnEarlierGeneration(t *testing.T) {
	t.Parallel()
	eachGate(t, func(t *testing.T, _ redis.UniversalClient, open func() counted) {
		ctx, before, after := t.Context(), open(), open()
		load(t, before.Counter, 2)
		load(t, after.Counter, 3)
		fill(t, before, "a", epochIn(2, 1), 5)
		mustTake(t, before, orderOf("a", 1))
		if takes, err := scanned(ctx, after, 0); err != nil || len(takes) > 0 {
			t.Fatalf("listed %v, %v", takes, err)
		}
		if takes, err := before.InFlight(ctx, 10, "a"); err != nil || len(takes) > 0 {
			t.Errorf("kept the record of %v, %v", takes, err)
		}
	})
}

// TestInFlight_ClockSetBack checks that recovery and the counting of units in flight find a take
// that was cut before Redis's clock was set back by an hour.
func TestInFlight_ClockSetBack(t *testing.T) {
	t.Parallel()
	eachGate(t, func(t *testing.T, client redis.UniversalClient, open func() counted) {
		ctx, g := t.Context(), open()
		load(t, g.Counter, 2)
		fill(t, g, "a", epochIn(2, 1), 5)
		taken := mustTake(t, g, orderOf("a", 1))
		for _, name := range g.layout.segmentsOf("a") {
			key, field := g.keys(name).flight, recordField(name, taken.OrderID)
			record, err := client.HGet(ctx, key, field).Result()
			if errors.Is(err, redis.Nil) {
				continue // the line was cut in another segment
			}
			if err != nil {
				t.Fatal(err)
			}
			parts := strings.Fields(record)
			at, err := strconv.ParseInt(parts[3], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			parts[3] = strconv.FormatInt(at+time.Hour.Microseconds(), 10)
			if err := client.HSet(ctx, key, field, strings.Join(parts, " ")).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if found, err := scanned(ctx, g, time.Hour); err != nil || len(found) != 1 || found[0].TakeID != taken.TakeID {
			t.Errorf("recovery finds %v, %v, want take %s", found, err, taken.TakeID)
		}
		if takes, err := g.InFlight(ctx, 10, "a"); err != nil || len(takes) != 1 {
			t.Errorf("in flight: %v, %v", takes, err)
		}
	})
}

// TestFillBetweenReadAndWrite checks that a take that read a count before a fill,
// or before the count was lost, writes nothing.
func TestFillBetweenReadAndWrite(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	g, other := readWrite0(client, ledger), readWrite0(client, ledger)
	fill(t, g, "a", 1, 10)
	fill(t, g, "b", 1, 10)
	g.between = func() { fill(t, other, "b", 2, 7) }
	if _, err := g.Take(t.Context(), linesOf("a", "b")); !errors.Is(err, stock.ErrNotFilled) {
		t.Errorf("got %v", err)
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 10})
	wantLevel(t, g, stock.Level{SKU: "b", Epoch: 2, Available: 7})
	g.between = func() {
		if err := client.HDel(t.Context(), g.keys("a").count, "a").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Take(t.Context(), linesOf("a", "b")); !errors.Is(err, stock.ErrNotFilled) {
		t.Errorf("a lost count: got %v", err)
	}
	if takes, err := g.InFlight(t.Context(), 10, "a", "b"); len(takes) > 0 || err != nil {
		t.Errorf("in flight: %v, %v", takes, err)
	}
}

// TestTwinBetweenReadAndWrite checks that the units in flight agree with the records when a take
// replaces the record of another take of the same order. Otherwise the replaced take's units would
// stay in flight without a record.
func TestTwinBetweenReadAndWrite(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	g, other := readWrite0(client, ledger), readWrite0(client, ledger)
	fill(t, g, "a", 1, 10)
	second := orderOf("a", 3)
	first := second
	first.TakeID = uuid.New()
	g.between = func() {
		if _, err := other.Take(t.Context(), first); err != nil {
			t.Error(err)
		}
	}
	taken := mustTake(t, g, second)
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 7, InFlight: 3})
	if err := g.Settle(t.Context(), stock.Take{Deduction: first}); err != nil { // the first take has no record
		t.Fatal(err)
	}
	if err := g.Give(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 10})
}

// TestRestartedFromASnapshot checks that a Redis that comes back with old counts
// cannot run the generation in use.
func TestRestartedFromASnapshot(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	client := storetest.Redis(t, server.URL())
	g := scriptOn(t, client)
	load(t, g.Counter, 2)
	fill(t, g, "a", epochIn(2, 1), 10)
	if err := client.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	testenv.AwaitSuccess(t, "Redis answers again", func() error { return client.Ping(ctx).Err() })
	if level := levelOf(t, g, "a"); level.Available != 10 {
		t.Fatalf("the snapshot has %+v", level)
	}
	if _, err := g.Take(ctx, orderOf("a", 1)); !errors.Is(err, stock.ErrNoGeneration) {
		t.Errorf("got %v", err)
	}
	load(t, g.Counter, 3)
	if _, err := g.Take(ctx, orderOf("a", 1)); !errors.Is(err, stock.ErrNotFilled) {
		t.Errorf("got %v", err)
	}
}

// TestLedgersHaveScriptsOfTheirOwn checks that a generation loaded for one ledger
// does not run for another in the same Redis.
func TestLedgersHaveScriptsOfTheirOwn(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Redis")
	ours, theirs := NewCounter(client, uuid.New(), Layout{}), NewCounter(client, uuid.New(), Layout{})
	load(t, theirs, 7)
	ours.Use(7)
	if loaded, err := ours.Loaded(t.Context()); loaded || err != nil {
		t.Errorf("loaded: %v, %v", loaded, err)
	}
}

// TestPartsOfTwoEpochs checks that units gathered from segments of two epochs are given back,
// because the SKU is being filled.
func TestPartsOfTwoEpochs(t *testing.T) {
	t.Parallel()
	client, hook := ownClient(t, "Redis", nil, -1), faults.NewHook()
	client.AddHook(hook)
	g := closed(t, segmented0(client, uuid.New(), 3, lock.NewLocal()))
	fill(t, g, "a", 1, 3)
	if err := g.fill(t.Context(), unfenced, stock.Fill{SKU: segmentOf("a", 1), Epoch: 2, Units: 1})[0]; err != nil {
		t.Fatal(err)
	}
	if _, err := g.Take(t.Context(), orderOf("a", 3)); !errors.Is(err, stock.ErrNotFilled) {
		t.Errorf("got %v", err)
	}
	if got, want := available(t, g, "a"), [3]int64{1, 1, 1}; got != want {
		t.Errorf("available: got %v, want %v", got, want)
	}
	hook.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Only: g.scripts.Load().give.sha})
	if _, err := g.Take(t.Context(), orderOf("a", 3)); err == nil || stock.NothingTaken(err) {
		t.Errorf("units could not be given back: got %v", err)
	}
}

// TestSettledBetween checks that a repeated take does not succeed without units if the first take
// is settled while its record is read.
func TestSettledBetween(t *testing.T) {
	t.Parallel()
	g, _ := divided3(t, "Redis")
	fill(t, g, "a", 1, 3)
	d := orderOf("a", 1)
	at := int(binary.BigEndian.Uint32(d.OrderID[12:]) % 3)
	other := orderOf("a", 1)
	copy(other.OrderID[12:], d.OrderID[12:]) // makes the other order try the same segment first
	for _, d := range []stock.Deduction{other, d} {
		mustTake(t, g, d)
	}
	if got := available(t, g, "a"); got[at] != 0 {
		t.Fatalf("available: %v", got)
	}
	g.inner = &settling{Gate: g.inner, settle: func(inner Gate) {
		if err := g.Settle(t.Context(), stock.Take{Deduction: d}); err != nil {
			t.Error(err)
		}
		for n := range 3 { // another order buys the rest
			rest := orderOf(segmentOf("a", n), 1)
			_, _ = inner.Take(t.Context(), rest)
		}
	}}
	if taken, err := g.Take(t.Context(), d); err == nil {
		t.Errorf("taken as %+v", taken)
	}
}

// settling calls settle before its second take.
type settling struct {
	Gate
	takes  int
	settle func(inner Gate)
}

func (g *settling) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if g.takes++; g.takes == 2 {
		g.settle(g.Gate)
	}
	return g.Gate.Take(ctx, d)
}

// TestRefusalsOfTheServer checks that an error that proves that Redis changed nothing is a refusal,
// and that any other error leaves the outcome open.
func TestRefusalsOfTheServer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	client := storetest.Redis(t, server.URL())
	g := scriptOn(t, client)
	fill(t, g, "a", 1, 5)
	set := func(name, value string) {
		if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for name, fault := range map[string]struct{ set, reset func() }{
		"out of memory":    {func() { set("maxmemory", "1") }, func() { set("maxmemory", "0") }},
		"too few replicas": {func() { set("min-replicas-to-write", "1") }, func() { set("min-replicas-to-write", "0") }},
		"read only": {
			func() { client.SlaveOf(t.Context(), "127.0.0.1", "1") },
			func() { client.SlaveOf(t.Context(), "NO", "ONE") },
		},
	} {
		fault.set()
		if _, err := g.Take(t.Context(), orderOf("a", 1)); !errors.Is(err, stock.ErrBusy) {
			t.Errorf("%s: got %v", name, err)
		}
		fault.reset()
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 5})
	}
	server.Kill()
	if _, err := g.Take(t.Context(), orderOf("a", 1)); err == nil {
		t.Error("a dead server answered")
	}
	if _, err := g.Take(t.Context(), orderOf("a", 1)); !errors.Is(err, stock.ErrBusy) { // the connection is refused
		t.Errorf("no server: got %v", err)
	}
}
