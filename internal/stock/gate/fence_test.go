package gate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// stoppedEnv makes the test program take under a lock and stop halfway. Its value
// is "BACKEND LOCKSERVER REDIS LEDGERID FENCED STEP".
const stoppedEnv = "HOLDFAST_GATE_STOPPED"

// stoppedLease is the lease of a stopped holder. It is the shortest that all lock servers allow.
const stoppedLease = 2 * time.Second

// deafLocker is a locker that does not tell holders that a lease has ended, so that only the store
// can refuse them. It calls before when it has got a lock.
type deafLocker struct {
	waitingLocker
	before func()
}

func (l deafLocker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.waitingLocker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	l.before()
	return deafLease{lease}, nil
}

type deafLease struct{ lock.Lease }

func (l deafLease) Context() context.Context { return context.WithoutCancel(l.Lease.Context()) }

// underLock returns a gate that takes under a lock of the backend. A take calls
// before, reads the counts, calls between, and writes them.
func underLock(ctx context.Context, backend, server string, lease time.Duration, client redis.UniversalClient, ledger uuid.UUID, fenced bool, before, between func()) (countedReadWrite, func() error, error) {
	b, ok := backends.Find(backend)
	if !ok {
		return countedReadWrite{}, nil, fmt.Errorf("no backend %q", backend)
	}
	locker, stop, err := b.Open(ctx, backends.Servers{
		Redis: client, ZooKeeper: server, Etcd: server, Lease: lease,
	})
	if err != nil {
		return countedReadWrite{}, nil, err
	}
	g := readWriteIn(client, ledger, Layout{Locks: NewLocks(deafLocker{locker, before}, time.Minute, fenced)})
	g.between = between
	return g, stop, nil
}

// stoppedProcess takes one unit. At the given step it prints the step and waits for
// a line.
func stoppedProcess(how string) (exit int) {
	fields := strings.Fields(how)
	client, err := connect(fields[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer client.Close()
	in := bufio.NewReader(os.Stdin)
	here := func(step string) func() {
		return func() {
			if step == fields[5] {
				fmt.Println(step)
				_, _ = in.ReadString('\n')
			}
		}
	}
	g, stop, err := underLock(context.Background(), fields[0], fields[1], stoppedLease, client, uuid.MustParse(fields[3]),
		fields[4] == "true", here("before"), here("between"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	switch _, err := g.Take(context.Background(), orderOf("a", 1)); {
	case err == nil:
		fmt.Println("taken")
	default:
		fmt.Println("refused", err)
	}
	return 0
}

// TestOutlivedLock stops a process in the middle of a take until its lock has been granted to
// another holder. Then the process continues and ignores the end of its lease. The fence must
// refuse its late read and its late write. Without a fence one unit is sold twice. Unless the run
// is thorough, the locks are in Redis. A gate uses all locks through one interface, and
// TestConformance of package locktest checks the tokens of each.
func TestOutlivedLock(t *testing.T) {
	t.Parallel()
	address := testenv.OwnRedis(t).Addr()
	client, err := connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	servers := map[string]func(testenv.T) string{
		"redis": func(testenv.T) string { return address }, "zookeeper": testenv.ZooKeeper, "etcd": testenv.Etcd,
	}
	for backend, locks := range servers {
		if backend != "redis" && !testenv.Thorough() {
			continue
		}
		for _, at := range []string{"before", "between"} { // stopped before reading, or between reading and writing
			for _, fence := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/fence %v", backend, at, fence), func(t *testing.T) {
					t.Parallel()
					answer := outlived{client, address, backend, locks(t), fence, at}.answer(t)
					switch {
					case fence && !strings.Contains(answer, errFenced.Error()):
						t.Errorf("the stopped holder was answered %q", answer)
					case !fence && answer != "taken":
						t.Errorf("without a fence the unit was not sold twice: %q", answer)
					}
				})
			}
		}
	}
}

// outlived is a take by a process that is stopped at a step until its lock has been granted to this
// process.
type outlived struct {
	client        redis.UniversalClient
	address       string // address of the client's server
	backend, lock string // backend and server of the lock
	fenced        bool
	step          string
}

// answer returns the output of the process after both have taken the same unit. On a busy machine
// the process may have lost its lock before it is stopped, which changes nothing.
func (o outlived) answer(t *testing.T) (answer string) {
	t.Helper()
	ledger := uuid.New()
	fill(t, readWrite0(o.client, ledger), "a", 1, 1)
	child := startChild(t, stoppedEnv+"="+strings.Join([]string{o.backend, o.lock, o.address, ledger.String(), fmt.Sprint(o.fenced), o.step}, " "))
	if step := child.line(t); step != o.step {
		t.Fatalf("the process printed %q", step)
	}
	if err := child.Stop(); err != nil {
		t.Fatal(err)
	}
	resume := func() {
		if err := child.Cont(); err != nil {
			t.Error(err)
		}
		if err := child.Send(""); err != nil {
			t.Error(err)
		}
		answer = child.line(t)
	}
	none := func() {}
	between := none
	if o.step == "before" { // both holders read before either writes
		between = resume
	}
	g, stop, err := underLock(t.Context(), o.backend, o.lock, lock.DefaultLease, o.client, ledger, o.fenced, none, between)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if _, err := g.Take(t.Context(), orderOf("a", 1)); err != nil {
		t.Fatalf("the next holder: %v", err)
	}
	if o.step == "between" {
		resume()
	}
	return answer
}

// TestFencesAreKept checks that every call that changes a count under a lock checks its token, and
// that a fill sets the fence to its own token.
func TestFencesAreKept(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Redis")
	g, ctx := readWrite0(client, uuid.New()), t.Context()
	under := func(token uint64) tokenSet {
		return tokenSet{bySKU: map[stock.SKU]uint64{"a": token}}
	}
	if err := g.fill(ctx, under(5), stock.Fill{SKU: "a", Epoch: 1, Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	held, err := g.take(ctx, under(6), orderOf("a", 2))
	if err != nil {
		t.Fatal(err)
	}
	addition := stock.Change{SKU: "a", Epoch: 1, Number: 1, Delta: 1}
	for name, call := range map[string]func(tokenSet) error{
		"Take":   func(tokens tokenSet) error { _, err := g.take(ctx, tokens, orderOf("a", 1)); return err },
		"Give":   func(tokens tokenSet) error { return g.give(ctx, tokens, held) },
		"Adjust": func(tokens tokenSet) error { return g.adjust(ctx, tokens, addition) },
	} {
		if err := call(under(5)); !errors.Is(err, errFenced) || !errors.Is(err, stock.ErrBusy) {
			t.Errorf("%s under an older token: %v", name, err)
		}
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 8, InFlight: 2})
	if err := g.adjust(ctx, under(7), addition); err != nil {
		t.Error(err)
	}
	if _, err := g.take(ctx, under(6), orderOf("a", 1)); !errors.Is(err, errFenced) {
		t.Errorf("a take under a token older than an addition's: %v", err)
	}
	if err := g.give(ctx, under(8), held); err != nil {
		t.Error(err)
	}
	if _, err := g.take(ctx, under(7), orderOf("a", 1)); !errors.Is(err, errFenced) {
		t.Errorf("a take under a token older than a give's: %v", err)
	}
	// Another lock service may start with smaller tokens.
	if err := g.fill(ctx, under(1), stock.Fill{SKU: "a", Epoch: 2, Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	if _, err := g.take(ctx, under(2), orderOf("a", 1)); err != nil {
		t.Errorf("after a fill under a smaller token: %v", err)
	}
	if err := g.adjust(ctx, unfenced, stock.Change{SKU: "a", Epoch: 2, Number: 1, Delta: 1}); err != nil {
		t.Errorf("an addition without a token: %v", err)
	}
}

// TestGiveFencesALateWrite checks that a late write of a take that was given back before changes
// nothing.
func TestGiveFencesALateWrite(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	g, ctx := readWrite0(client, ledger), t.Context()
	under := func(token uint64) tokenSet {
		return tokenSet{bySKU: map[stock.SKU]uint64{"a": token}}
	}
	if err := g.fill(ctx, under(5), stock.Fill{SKU: "a", Epoch: 1, Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	late := orderOf("a", 2)
	g.between = func() {
		if err := g.give(ctx, under(7), stock.Take{Deduction: late}); err != nil {
			t.Error(err)
		}
	}
	if _, err := g.take(ctx, under(6), late); !errors.Is(err, errFenced) {
		t.Errorf("a write after the take was given back: %v, want errFenced", err)
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 10})

	// The locks of a later generation may have smaller tokens.
	later := readWrite0(client, ledger)
	load(t, later.Counter, 1)
	if err := later.fill(ctx, under(1), stock.Fill{SKU: "a", Epoch: epochIn(1, 1), Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	if err := g.give(ctx, under(8), stock.Take{Deduction: orderOf("a", 1)}); err != nil {
		t.Error(err)
	}
	if _, err := later.take(ctx, under(2), orderOf("a", 1)); err != nil {
		t.Errorf("after a give of the earlier generation: %v", err)
	}
}

// TestNoToken checks that a call without a token of the SKU changes nothing.
func TestNoToken(t *testing.T) {
	t.Parallel()
	g, ctx := readWrite0(shared.client(t, "Redis"), uuid.New()), t.Context()
	fill(t, g, "a", 1, 10)
	held, err := g.Take(ctx, orderOf("a", 2))
	if err != nil {
		t.Fatal(err)
	}
	for name, tokens := range map[string]tokenSet{
		"none":           {},
		"of another SKU": {bySKU: map[stock.SKU]uint64{"b": 1}},
		"zero":           {bySKU: map[stock.SKU]uint64{"a": 0}},
	} {
		_, take := g.take(ctx, tokens, orderOf("a", 1))
		for call, err := range map[string]error{
			"Take":   take,
			"Give":   g.give(ctx, tokens, held),
			"Fill":   g.fill(ctx, tokens, stock.Fill{SKU: "a", Epoch: 2, Units: 5})[0],
			"Adjust": g.adjust(ctx, tokens, stock.Change{SKU: "a", Epoch: 1, Number: 1, Delta: 1}),
		} {
			if !errors.Is(err, errNoToken) {
				t.Errorf("%s, token %s: %v", call, name, err)
			}
		}
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 8, InFlight: 2})
}
