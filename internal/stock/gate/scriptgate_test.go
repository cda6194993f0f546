package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gatetest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// scriptOn returns a gate of a new ledger.
func scriptOn(t testing.TB, client redis.UniversalClient) countedScript {
	t.Helper()
	g := script0(client, uuid.New())
	t.Cleanup(g.Close)
	return g
}

func fill(t testing.TB, g gatetest.Gate, sku stock.SKU, epoch, units int64) {
	t.Helper()
	if err := g.Fill(t.Context(), sku, epoch, units); err != nil {
		t.Fatal(err)
	}
}

// mustTake cuts the units of the order.
func mustTake(t testing.TB, g Gate, d stock.Deduction) stock.Take {
	t.Helper()
	taken, err := g.Take(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

func wantLevel(t *testing.T, g gatetest.Gate, want stock.Level) {
	t.Helper()
	want.Filled = true
	if level := levelOf(t, g, want.SKU); level != want {
		t.Errorf("got %+v, want %+v", level, want)
	}
}

// TestOneCallForManyTakes checks that one call cuts, in order of arrival, every take that still
// fits whole, and refuses only the others. One call settles them.
func TestOneCallForManyTakes(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Redis", "Sentinel", "InProcess"} { // a cluster has one call for each SKU
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			g := scriptOn(t, shared.client(t, kind))
			fill(t, g, "a", 7, 3)
			fill(t, g, "b", 9, 2)
			line := func(sku stock.SKU, units int64) stock.Line { return stock.Line{SKU: sku, Quantity: units} }
			cutOf := func(d stock.Deduction) *cut {
				return &cut{d: d, lines: d.Lines, receipt: make(stock.Receipt, len(d.Lines))}
			}
			of := func(lines ...stock.Line) *cut {
				d := orderOf("", 0)
				d.Lines = lines
				return cutOf(d)
			}
			fits := of(line("a", 1), line("b", 2))
			repeat, twin := cutOf(fits.d), cutOf(fits.d)
			twin.d.TakeID = uuid.New()
			var others []*cut // so many that the numbers of a and b do not fit into one byte
			for i := range 256 {
				others = append(others, of(line(stock.SKU("other-"+strconv.Itoa(i)), 1)))
			}
			cuts := []*cut{
				of(line("a", 5)),               // more than the stock
				fits,                           // leaves 2 of a, none of b
				of(line("a", 1), line("b", 1)), // refused for b, keeps none of a
				repeat,
				twin,
				of(line("a", 1)),
				of(line("a", 1)),
				of(line("a", 1)),
				of(line("c", 1)),
				of(line("b", 1), line("c", 1)), // "not filled" takes precedence
			}
			g.runCuts(append(others, cuts...))
			want := []string{
				"SKU a: sold out", "", "SKU b: sold out", "", stock.ErrInFlight.Error(), "", "", "SKU a: sold out",
				stock.Refuse("c", stock.ErrNotFilled).Error(), stock.Refuse("c", stock.ErrNotFilled).Error(),
			}
			for i, c := range cuts {
				got := ""
				if c.err != nil {
					got = c.err.Error()
				}
				if got != want[i] {
					t.Errorf("take %d was answered %q, want %q", i, got, want[i])
				}
			}
			for _, c := range []*cut{fits, repeat} {
				if c.receipt[0].Epoch != 7 || c.receipt[1].Epoch != 9 {
					t.Errorf("the receipt is %v", c.receipt)
				}
			}
			if fits.already || !repeat.already {
				t.Errorf("already cut: %v, then %v", fits.already, repeat.already)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 7, Available: 0, InFlight: 3})
			wantLevel(t, g, stock.Level{SKU: "b", Epoch: 9, Available: 0, InFlight: 2})
			var takes []stock.Take
			for _, c := range append(others, cuts...) {
				takes = append(takes, stock.Take{Deduction: c.d})
			}
			if err := g.Settle(t.Context(), takes...); err != nil {
				t.Fatal(err)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 7, Available: 0})
			wantLevel(t, g, stock.Level{SKU: "b", Epoch: 9, Available: 0})
		})
	}
}

// TestConcurrentTakesShareCalls counts the script calls of many takes at once.
func TestConcurrentTakesShareCalls(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds[:2] {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			client := ownClient(t, kind, nil, 0)
			var calls atomic.Int64
			client.AddHook(before(func(cmd redis.Cmder) error {
				if strings.HasPrefix(cmd.Name(), "eval") {
					calls.Add(1)
				}
				return nil
			}))
			g := scriptOn(t, client)
			const takes = 2000
			fill(t, g, "a", 1, takes)
			var all sync.WaitGroup
			for range takes {
				all.Go(func() {
					if _, err := g.Take(t.Context(), orderOf("a", 1)); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if n := calls.Load(); n > takes/4 {
				t.Errorf("%d calls for %d takes at once", n, takes)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 0, InFlight: takes})
		})
	}
}

// before returns a hook that calls check with every command that is about to be sent, in
// pipelines too, and fails the command with its error.
func before(check func(redis.Cmder) error) faults.Around {
	return func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
		for _, cmd := range cmds {
			if err := check(cmd); err != nil {
				return err
			}
		}
		return run(ctx)
	}
}

// ownClient returns another client of the shared servers. dial may be nil. The client repeats a
// failed command up to retries times, if the command allows it.
func ownClient(t testing.TB, kind string, dial func(ctx context.Context, network, addr string) (net.Conn, error), retries int) redis.UniversalClient {
	t.Helper()
	var client redis.UniversalClient
	switch c := shared.client(t, kind).(type) {
	case *redis.ClusterClient:
		client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Options().Addrs, Dialer: dial, MaxRedirects: 3, MaxRetries: retries})
	case *redis.Client:
		client = redis.NewClient(&redis.Options{Addr: c.Options().Addr, Dialer: dial, MaxRetries: max(retries, -1)})
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestFullQueueIsBusy blocks commands until the queue of takes is full.
func TestFullQueueIsBusy(t *testing.T) {
	t.Parallel()
	client := ownClient(t, "Redis", nil, 0)
	held := make(chan struct{})
	var holding atomic.Bool
	client.AddHook(before(func(redis.Cmder) error {
		if holding.Load() {
			<-held
		}
		return nil
	}))
	g := scriptOn(t, client)
	const takes = 5000 // more takes than the queue and one call hold
	fill(t, g, "a", 1, takes)
	holding.Store(true)
	var (
		release  = sync.OnceFunc(func() { holding.Store(false); close(held) })
		accepted atomic.Int64
		unknown  atomic.Int64 // on a slow machine, the first call may exceed its time limit
		all      sync.WaitGroup
	)
	for range takes {
		all.Go(func() {
			switch _, err := g.Take(t.Context(), orderOf("a", 1)); {
			case err == nil:
				accepted.Add(1)
			case errors.Is(err, stock.ErrBusy):
				release()
			case errors.Is(err, context.DeadlineExceeded):
				unknown.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	release()
	n := accepted.Load()
	if n+unknown.Load() == takes {
		t.Error("no take was answered that the gate is busy")
	}
	if unknown.Load() > 0 {
		return
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: takes - n, InFlight: n})
}

func TestMalformedDeductions(t *testing.T) {
	t.Parallel()
	segments, _ := divided3(t, "Redis")
	for name, g := range map[string]gatetest.Gate{
		"Script":    scriptOn(t, shared.client(t, "Redis")),
		"ReadWrite": readWrite0(shared.client(t, "Redis"), uuid.New()),
		"Segmented": segments,
	} {
		fill(t, g, "a", 1, 10)
		none := orderOf("a", 1)
		none.Lines = nil
		many := orderOf("a", 1)
		many.Lines = slices.Repeat(many.Lines, maxParts+1)
		for _, d := range []stock.Deduction{none, many, orderOf("a", 0), orderOf("a", -1), orderOf("a", stock.MaxTotal+1)} {
			if _, err := g.Take(t.Context(), d); !errors.Is(err, errDeduction) {
				t.Errorf("%s: %v: got error %v", name, d.Lines, err)
			}
		}
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 10})
	}
}

func TestTakeAfterCloseIsBusy(t *testing.T) {
	t.Parallel()
	g := script0(shared.client(t, "Redis"), uuid.New())
	fill(t, g, "a", 1, 1)
	g.Close()
	if _, err := g.Take(t.Context(), orderOf("a", 1)); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("got %v", err)
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 1})
}

// lossy is a dialer whose connections lose one answer. Once it is armed, the connection breaks when
// the answer to the first command that contains text arrives. From then on it counts how often such
// a command is sent.
type lossy struct {
	text  string
	armed atomic.Bool
	sent  atomic.Int64
}

func (l *lossy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return lossyConn{conn.(*net.TCPConn), l}, nil
}

type lossyConn struct {
	*net.TCPConn
	lossy *lossy
}

func (c lossyConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if c.lossy.armed.Load() && bytes.Contains(b, []byte(c.lossy.text)) && c.lossy.sent.Add(1) == 1 {
		_ = c.SetReadDeadline(time.Time{})
		_, _ = c.Read(make([]byte, 1))
		_ = c.CloseRead() // the client reads EOF
	}
	return n, err
}

// TestLostAnswerIsNotRetried checks that the client does not repeat a take after a lost answer.
func TestLostAnswerIsNotRetried(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds[:2] {
		ledger := uuid.New()
		for _, test := range []struct {
			name, text string // text of the command that cuts
			open       func(client redis.UniversalClient) gatetest.Gate
		}{
			{"Script", "evalsha", func(client redis.UniversalClient) gatetest.Gate { return scriptOn(t, client) }},
			{"ReadWrite", newScripts(ledger, 0).write.sha, func(client redis.UniversalClient) gatetest.Gate { return readWrite0(client, ledger) }},
		} {
			t.Run(test.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				faulty := &lossy{text: test.text}
				g := test.open(ownClient(t, kind, faulty.dial, 3))
				fill(t, g, "a", 1, 10)
				faulty.armed.Store(true)
				if _, err := g.Take(t.Context(), orderOf("a", 2)); err == nil || stock.NothingTaken(err) {
					t.Errorf("a take whose answer was lost: %v", err)
				}
				if n := faulty.sent.Load(); n != 1 {
					t.Errorf("it was sent %d times", n)
				}
				wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 8, InFlight: 2})
			})
		}
	}
}

// TestRefusedPartsLeaveNothing checks a refusal on a cluster, where lines are cut one by one. The
// units that were cut before the refusal must be given back, and nothing must be burned.
func TestRefusedPartsLeaveNothing(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Cluster")
	for name, g := range map[string]gatetest.Gate{
		"Script":    scriptOn(t, client),
		"ReadWrite": readWrite0(client, uuid.New()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := orderOf("a", 2)
			d.Lines = append(d.Lines, stock.Line{SKU: "b", Quantity: 2}, stock.Line{SKU: "c", Quantity: 2})
			for _, line := range d.Lines {
				fill(t, g, line.SKU, 1, 5)
			}
			if err := g.Fill(t.Context(), "c", 2, 1); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Take(t.Context(), d); !errors.Is(err, stock.ErrSoldOut) {
				t.Fatalf("got %v", err)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 5})
			wantLevel(t, g, stock.Level{SKU: "b", Epoch: 1, Available: 5})
			wantLevel(t, g, stock.Level{SKU: "c", Epoch: 2, Available: 1})
			fill(t, g, "c", 3, 5)
			if _, err := g.Take(t.Context(), d); err != nil { // nothing was burned
				t.Error(err)
			}
			// Sent again after a refill of c, it is refused for c and keeps the
			// units that it cut before.
			fill(t, g, "c", 4, 1)
			if _, err := g.Take(t.Context(), d); !errors.Is(err, stock.ErrSoldOut) {
				t.Errorf("got %v", err)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 3, InFlight: 2})
			wantLevel(t, g, stock.Level{SKU: "b", Epoch: 1, Available: 3, InFlight: 2})
		})
	}
}

// TestPartLeftIsNoRefusal checks the error of a take that was refused in part, if the other parts
// cannot be given back or their outcome is open. The error must tell the caller to give the take
// back.
func TestPartLeftIsNoRefusal(t *testing.T) {
	t.Parallel()
	client := ownClient(t, "Cluster", nil, 0)
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	var breaking atomic.Pointer[error]
	var giveSHA atomic.Value
	client.AddHook(before(func(cmd redis.Cmder) error {
		if broken := breaking.Load(); broken != nil && len(cmd.Args()) > 1 && cmd.Args()[1] == giveSHA.Load() {
			return *broken
		}
		return nil
	}))
	g := scriptOn(t, client)
	giveSHA.Store(g.scripts.Load().give.sha)
	fill(t, g, "a", 1, 5)
	fill(t, g, "b", 1, 1)
	for _, broken := range []error{errors.New("broken"), refused} { // a refusal proves only that the give did nothing
		d := orderOf("a", 2)
		d.Lines = append(d.Lines, stock.Line{SKU: "b", Quantity: 2})
		breaking.Store(&broken)
		if _, err := g.Take(t.Context(), d); err == nil || stock.NothingTaken(err) {
			t.Errorf("%v: got %v", broken, err)
		}
		breaking.Store(nil)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 3, InFlight: 2})
		if err := g.Give(t.Context(), stock.Take{Deduction: d}); err != nil {
			t.Error(err)
		}
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 5})
	}
	lost := faults.NewHook() // if the outcome of a take is open, Take does not give it back: its caller does
	client.AddHook(lost)
	lost.Arm(faults.Fault{Kind: faults.Lost, Nth: 1, Only: ":b}:"}, faults.Fault{Kind: faults.Refused, Nth: 1, Only: g.scripts.Load().give.sha})
	d := orderOf("a", 1)
	d.Lines = append(d.Lines, stock.Line{SKU: "b", Quantity: 1})
	_, err := g.Take(t.Context(), d)
	if _, injected := lost.Disarm(); !errors.Is(err, io.EOF) || len(injected) != 1 {
		t.Errorf("a part is open: %v, %q", err, injected)
	}
}

// TestStoppedRedis checks that takes do not wait long for a stopped server. Gives must undo the
// takes that it runs once it continues, in any order.
func TestStoppedRedis(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	g := scriptOn(t, storetest.Redis(t, server.URL()))
	fill(t, g, "a", 1, 10)
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	ds := make([]stock.Deduction, 50)
	var all sync.WaitGroup
	for i := range ds {
		ds[i] = orderOf("a", 1)
		all.Go(func() {
			if _, err := g.Take(ctx, ds[i]); err == nil || stock.NothingTaken(err) {
				t.Errorf("a stopped Redis: got error %v", err)
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		t.Error("the takes wait for one another")
	}
	server.Cont()
	for _, d := range ds {
		if err := g.Give(t.Context(), stock.Take{Deduction: d}); err != nil {
			t.Error(err)
		}
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 10})
}

// TestBurnedTakesAreBounded checks that burned takes are bounded in age and number.
func TestBurnedTakesAreBounded(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Redis")
	g := scriptOn(t, client)
	key := g.keys("a").burned
	old := float64(time.Now().Add(-burnTime - time.Minute).UnixMilli())
	if err := client.ZAdd(t.Context(), key, redis.Z{Score: old, Member: "old"}).Err(); err != nil {
		t.Fatal(err)
	}
	give := func() {
		t.Helper()
		if err := g.Give(t.Context(), stock.Take{Deduction: orderOf("a", 1)}); err != nil {
			t.Fatal(err)
		}
	}
	give()
	if n := client.ZCard(t.Context(), key).Val(); n != 1 {
		t.Errorf("%d takes are burned, the expired one among them", n)
	}
	if left := client.PTTL(t.Context(), key).Val(); left <= burnTime-time.Minute || left > burnTime {
		t.Errorf("the burned takes expire in %v", left)
	}
	many := make([]redis.Z, maxBurned)
	for i := range many {
		many[i] = redis.Z{Score: float64(time.Now().UnixMilli() - 1000), Member: i}
	}
	if err := client.ZAdd(t.Context(), key, many...).Err(); err != nil {
		t.Fatal(err)
	}
	last := orderOf("a", 1)
	if err := g.Give(t.Context(), stock.Take{Deduction: last}); err != nil {
		t.Fatal(err)
	}
	if n := client.ZCard(t.Context(), key).Val(); n != maxBurned {
		t.Errorf("%d takes are burned", n)
	}
	if _, err := g.Take(t.Context(), last); !errors.Is(err, stock.ErrBurned) {
		t.Errorf("the take that was burned last: %v", err)
	}
}

func TestLedgersAreSeparate(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Redis")
	a, b := scriptOn(t, client), scriptOn(t, client)
	fill(t, a, "a", 1, 5)
	if _, err := b.Take(t.Context(), orderOf("a", 1)); !errors.Is(err, stock.ErrNotFilled) {
		t.Errorf("a gate used the count of another ledger: %v", err)
	}
}

// BenchmarkTake has 64 concurrent callers on two processors. cpu-µs/take is the CPU time of this
// process, redis-µs/take that of the server.
func BenchmarkTake(b *testing.B) {
	for _, skus := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("SKUs=%d", skus), func(b *testing.B) {
			client := shared.client(b, "Redis")
			g := scriptOn(b, client)
			names := make([]stock.SKU, skus)
			for i := range names {
				names[i] = stock.SKU(fmt.Sprintf("sku-%d", i))
				fill(b, g, names[i], 1, stock.MaxTotal)
			}
			var n atomic.Uint64
			b.SetParallelism(32)
			b.ReportAllocs()
			before, serverBefore := cpu(b), serverCPU(b, client)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := g.Take(context.Background(), orderOf(names[n.Add(1)%uint64(skus)], 1)); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/take")
			b.ReportMetric(float64((serverCPU(b, client)-serverBefore).Microseconds())/float64(b.N), "redis-µs/take")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "takes/s")
		})
	}
}

// BenchmarkSettle settles in groups of 128. It does not measure the takes.
func BenchmarkSettle(b *testing.B) {
	client := shared.client(b, "Redis")
	g := scriptOn(b, client)
	fill(b, g, "a", 1, stock.MaxTotal)
	takes := make([]stock.Take, b.N)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for ; i < b.N; i += 64 {
				taken, err := g.Take(context.Background(), orderOf("a", 1))
				if err != nil {
					b.Error(err)
					return
				}
				takes[i] = taken
			}
		})
	}
	all.Wait()
	before, serverBefore := cpu(b), serverCPU(b, client)
	b.ReportAllocs()
	b.ResetTimer()
	for group := range slices.Chunk(takes, 128) {
		if err := g.Settle(context.Background(), group...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/take")
	b.ReportMetric(float64((serverCPU(b, client)-serverBefore).Microseconds())/float64(b.N), "redis-µs/take")
}

func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func serverCPU(b *testing.B, client redis.UniversalClient) (used time.Duration) {
	for line := range strings.Lines(client.Info(context.Background(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			used += time.Duration(seconds * float64(time.Second))
		}
	}
	return used
}
