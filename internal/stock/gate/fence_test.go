package gate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock/backends"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// stoppedEnv tells the test program to take under a lock and to stop on the way:
// "BACKEND LOCKSERVER REDIS LEDGERID FENCED AT".
const stoppedEnv = "HOLDFAST_GATE_STOPPED"

// stoppedLease is the shortest that all servers allow.
const stoppedLease = 2 * time.Second

// deaf does not hear that its lease has ended: what refuses it then is the
// store.
type deaf struct {
	stock.Gate
	before func()
}

func (g deaf) Take(ctx context.Context, d stock.Deduction) (stock.Deduction, error) {
	g.before()
	return g.Gate.Take(context.WithoutCancel(ctx), d)
}

// underLock takes under a lock of the backend. before and between are called
// before the counts are read, and before they are written.
func underLock(ctx context.Context, backend, server string, client redis.UniversalClient, ledger uuid.UUID, fenced bool, before, between func()) (*Locked, func() error, error) {
	b, ok := backends.Find(backend)
	if !ok {
		return nil, nil, fmt.Errorf("no backend %q", backend)
	}
	locker, stop, err := b.Open(ctx, backends.Servers{
		Redis: client, ZooKeeper: []string{server}, Etcd: []string{server}, Lease: stoppedLease,
	})
	if err != nil {
		return nil, nil, err
	}
	inner := readWrite0(client, ledger)
	inner.between = between
	return NewLocked(deaf{inner, before}, locker, time.Minute, fenced), stop, nil
}

// stoppedProcess takes one unit, and at the given step says so and waits for a
// line.
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
	g, stop, err := underLock(context.Background(), fields[0], fields[1], client, uuid.MustParse(fields[3]),
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

// TestOutlivedLock: a process is stopped in the middle of a take until its lock
// has gone to another, and goes on, not hearing that its lease has ended. The
// fence refuses its late read and its late write. Without a fence one unit is
// sold twice.
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
		for _, at := range []string{"before", "between"} { // reading, and writing
			for _, fence := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/fence %v", backend, at, fence), func(t *testing.T) {
					t.Parallel()
					server, ledger := locks(t), uuid.New()
					fill(t, readWrite0(client, ledger), "a", 1, 1)
					child := startChild(t, stoppedEnv+"="+strings.Join([]string{backend, server, address, ledger.String(), fmt.Sprint(fence), at}, " "))
					if step := child.line(t); step != at {
						t.Fatalf("the process says %q", step)
					}
					if err := child.process.Signal(syscall.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					stopped := time.Now()
					var answer string
					goOn := func() {
						if err := child.process.Signal(syscall.SIGCONT); err != nil {
							t.Error(err)
						}
						if _, err := child.in.Write([]byte("\n")); err != nil {
							t.Error(err)
						}
						answer = child.line(t)
					}
					none := func() {}
					between := none
					if at == "before" { // then the two reads, and the two writes, are interleaved
						between = goOn
					}
					g, stop, err := underLock(t.Context(), backend, server, client, ledger, fence, none, between)
					if err != nil {
						t.Fatal(err)
					}
					defer stop()
					if _, err := g.Take(t.Context(), orderOf("a", 1)); err != nil {
						t.Fatalf("the next holder: %v", err)
					}
					if waited := time.Since(stopped); waited < stoppedLease/2 {
						t.Errorf("the lock was granted again after %v: its holder was not stopped", waited)
					}
					if at == "between" {
						goOn()
					}
					switch {
					case fence && !strings.Contains(answer, errFenced.Error()):
						t.Errorf("the stopped holder was answered %q", answer)
					case !fence && answer != "taken":
						t.Errorf("the control does not sell the unit twice: %q", answer)
					}
				})
			}
		}
	}
}

// TestFencesAreKept by every call that changes a count under a lock, and begin
// again with a fill.
func TestFencesAreKept(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Redis")
	g := readWrite0(client, uuid.New())
	under := func(token uint64) context.Context {
		return withTokens(t.Context(), map[stock.SKU]uint64{"a": token})
	}
	if err := g.Fill(under(5), "a", 1, 10); err != nil {
		t.Fatal(err)
	}
	held := orderOf("a", 2)
	if _, err := g.Take(under(6), held); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"Take": func(ctx context.Context) error { _, err := g.Take(ctx, orderOf("a", 1)); return err },
		"Give": func(ctx context.Context) error { return g.Give(ctx, held) },
		"Adjust": func(ctx context.Context) error {
			return g.Adjust(ctx, stock.Change{SKU: "a", Epoch: 1, Number: 1, Delta: 1})
		},
	} {
		if err := call(under(5)); !errors.Is(err, errFenced) || !errors.Is(err, stock.ErrBusy) {
			t.Errorf("%s under an older token: %v", name, err)
		}
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 8, InFlight: 2})
	if err := g.Adjust(under(7), stock.Change{SKU: "a", Epoch: 1, Number: 1, Delta: 1}); err != nil {
		t.Error(err)
	}
	if err := g.Give(under(8), held); err != nil {
		t.Error(err)
	}
	if _, err := g.Take(under(7), orderOf("a", 1)); !errors.Is(err, errFenced) {
		t.Errorf("a take under a token older than a give's: %v", err)
	}
	// Another lock service, whose tokens are small.
	if err := g.Fill(under(1), "a", 2, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Take(under(2), orderOf("a", 1)); err != nil {
		t.Errorf("after a fill under a smaller token: %v", err)
	}
}
