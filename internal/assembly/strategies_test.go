package assembly

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestLayout checks that a layout names the version of the ledger's rules, and if the strategy has
// them, the version of the gate's scripts, the number of slots, and the lock with its fencing. The
// layout of merged in 0.1.0 was "merged": with the same one here, a running instance of 0.1.0 would
// go on selling beside this build, above buyer limits and outside opening hours.
func TestLayout(t *testing.T) {
	for _, s := range Strategies() {
		layout := s.layout(Backends{LockName: "redis", Segments: 8, Slots: 8})
		if !strings.HasPrefix(layout, s.Name+", rules ") {
			t.Errorf("%s: the layout is %q", s.Name, layout)
		}
		if named := strings.Contains(layout, ", scripts "+gate.ScriptsVersion()); named != s.HasGate() {
			t.Errorf("%s: the layout is %q", s.Name, layout)
		}
		if named := strings.Contains(layout, ", 8 slots"); named != s.Slotted {
			t.Errorf("%s: the layout is %q", s.Name, layout)
		}
		fenced := s.layout(Backends{LockName: "redis", Segments: 8, Slots: 8, Fence: true})
		if strings.HasSuffix(layout, ", lock redis, unfenced") != s.NeedsLock || strings.HasSuffix(fenced, ", lock redis") != s.NeedsLock {
			t.Errorf("%s: the layout is %q, and with fencing %q", s.Name, layout, fenced)
		}
	}
}

// inProcessRedis returns a client of a new Redis in this process.
func inProcessRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	server, err := store.OpenInProcessRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server.Client()
}

// TestQueueing checks that the table marks exactly the gates that have a journal.
func TestQueueing(t *testing.T) {
	client := inProcessRedis(t)
	for _, s := range Strategies() {
		built, closeGate := s.Build(Backends{Redis: client, LedgerID: uuid.New(), Segments: 2, Slots: 2})
		if (built.Journal != nil) != s.Queues || s.Queues != (Queueing().Name == s.Name) {
			t.Errorf("%s: journal %v, and the table says %v", s.Name, built.Journal, s.Queues)
		}
		closeGate()
	}
}

// TestTurnLease checks that an instance that crashes in its turn keeps others from theirs only for
// seconds.
func TestTurnLease(t *testing.T) {
	t.Parallel()
	client := inProcessRedis(t)
	queue, _ := FindStrategy("queue")
	built, closeGate := queue.Build(Backends{Redis: client, LedgerID: uuid.New()})
	t.Cleanup(closeGate)
	if err := built.Counter.Load(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	var left time.Duration
	client.AddHook(faults.Around(func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
		if gate.ScriptName(cmds[0]) == "read" {
			left = client.PTTL(ctx, "stock:a").Val()
		}
		return run(ctx)
	}))
	_, _ = built.Gate.Take(t.Context(), stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Lines: []stock.Line{{SKU: "a", Quantity: 1}}})
	if left <= 0 || left > turnLease {
		t.Errorf("the lease of a turn lasts %v, want at most %v", left, turnLease)
	}
}

// TestLongGather checks that the lock of a gather is renewed while the gather waits for Redis.
// Otherwise another one begins meanwhile, and finds too few units.
func TestLongGather(t *testing.T) {
	t.Parallel()
	client := inProcessRedis(t)
	segment, _ := FindStrategy("segment")
	built, closeGate := segment.Build(Backends{Redis: client, LedgerID: uuid.New(), Segments: 2})
	t.Cleanup(closeGate)
	built.Counter.Use(1)
	first, _ := stock.Generation(1).Epochs()
	if err := built.Counter.Load(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := built.Counter.Fill(t.Context(), "a", first+1, 2); err != nil {
		t.Fatal(err)
	}
	var (
		takes     atomic.Int64
		renewed   atomic.Bool
		gathering = make(chan struct{})
		over      = make(chan struct{})
	)
	client.AddHook(faults.Around(func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
		switch args := cmds[0].Args(); {
		case gate.ScriptName(cmds[0]) == "take" && takes.Add(1) == 2: // the first one finds that no segment has enough
			close(gathering)
			<-over
		case len(args) > 3 && args[2] == 1 && args[3] == "gather:a": // only the renewal has one key
			renewed.Store(true)
		}
		return run(ctx)
	}))
	var taking sync.WaitGroup
	taking.Go(func() {
		_, _ = built.Gate.Take(t.Context(), stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Lines: []stock.Line{{SKU: "a", Quantity: 2}}})
	})
	defer taking.Wait()
	defer close(over)
	testenv.Receive(t, "the gather", gathering)
	if left := client.PTTL(t.Context(), "gather:a").Val(); left > gatherLease {
		t.Errorf("a crashed instance would keep others from gathering for %v", left)
	}
	testenv.Await(t, "the lock is renewed, or ends", func() bool {
		return renewed.Load() || client.Exists(t.Context(), "gather:a").Val() == 0
	})
	if !renewed.Load() {
		t.Error("the lock has ended during the gather")
	}
}

// TestPages checks that docs/strategies.md and its Chinese twin describe every strategy.
func TestPages(t *testing.T) {
	described := regexp.MustCompile(`(?m)^## (.+?)[:：]`)
	for _, page := range []string{"../../docs/strategies.md", "../../docs/strategies.zh-CN.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, heading := range described.FindAllStringSubmatch(string(text), -1) {
			names = append(names, strings.Fields(heading[1])...)
		}
		for _, s := range Strategies() {
			if !slices.Contains(names, s.Name) {
				t.Errorf("%s has no heading for %s", page, s.Name)
			}
		}
	}
}
