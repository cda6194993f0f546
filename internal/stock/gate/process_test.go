package gate

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock/gatetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// rushEnv makes the test program one of several processes that rush one Redis. Its value is "GATE
// ADDRESS LEDGERID".
const rushEnv = "HOLDFAST_GATE_RUSH"

// rushAsProcess waits for a line on standard input, rushes, and prints the number of accepted
// units.
func rushAsProcess(how string) (exit int) {
	fields := strings.Fields(how)
	ledger := uuid.MustParse(fields[2])
	client, err := connect(fields[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer client.Close()
	var g interface {
		gatetest.Gate
		Close()
	}
	switch fields[0] {
	case "script":
		g = script0(client, ledger)
	case "mutex":
		g = mutex0(client, ledger)
	case "queue":
		g = queue0(client, ledger)
	}
	defer g.Close()
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return 1 // the parent process has ended
	}
	accepted, err := gatetest.Rush(context.Background(), []gatetest.Gate{g}, "a", 8)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(accepted)
	return 0
}

// TestProcesses runs four processes that rush one Redis. The script must sell exactly the stock,
// and so must queues with one consumer at a time. In a thorough run, it also checks that a mutex in
// each process oversells. TestOverselling forces that with two instances in one process.
func TestProcesses(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Redis")
	for _, test := range []struct {
		gate  string
		units int64
		sound bool
	}{
		{"script", 2000, true},
		{"queue", 8000, true}, // several turns for each process
		{"mutex", 2000, false},
	} {
		if !test.sound && !testenv.Thorough() {
			continue
		}
		t.Run(test.gate, func(t *testing.T) {
			t.Parallel()
			for try := 1; !rush(t, client, test.gate, test.units, test.sound); try++ {
				if try == 5 {
					t.Fatalf("in each of %d rushes, a process sold nothing, or the broken gate did not oversell", try)
				}
			}
		})
	}
}

// rush makes four processes sell the units. It returns false if one of them sold nothing, or if an
// unsound gate did not oversell. On a busy machine they may not run at the same time.
func rush(t *testing.T, client redis.UniversalClient, gate string, units int64, sound bool) (together bool) {
	t.Helper()
	const processes = 4
	ledger := uuid.New()
	g := readWrite0(client, ledger)
	if err := g.Fill(t.Context(), "a", 1, units); err != nil {
		t.Fatal(err)
	}
	how := gate + " " + client.(*redis.Client).Options().Addr + " " + ledger.String()
	children := make([]child, processes)
	for i := range children {
		children[i] = startRush(t, how)
	}
	for _, c := range children {
		if err := c.Send(""); err != nil {
			t.Fatal(err)
		}
	}
	var sold int64
	together = true
	for _, c := range children {
		accepted, err := strconv.ParseInt(c.line(t), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sold += accepted
		together = together && accepted > 0
	}
	if level := levelOf(t, g, "a"); sound && (sold != units || level.Available != 0 || level.InFlight != units) {
		t.Errorf("sold %d of %d, and the gate has %+v", sold, units, level)
	}
	return together && (sound || sold > units)
}

// child is a process that the test talks to by lines.
type child struct{ *testenv.Child }

// startRush starts a process that is ready to rush.
func startRush(t *testing.T, how string) child {
	t.Helper()
	c := startChild(t, rushEnv+"="+how)
	if said := c.line(t); said != "ready" {
		t.Fatalf("the process printed %q", said)
	}
	return c
}

// startChild runs the test program as another process, until the test ends. The
// environment variable says what that process does.
func startChild(t *testing.T, variable string) child {
	t.Helper()
	c, err := testenv.StartSelf(variable)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.End)
	return child{c}
}

func (c child) line(t *testing.T) string {
	t.Helper()
	text, err := c.Line(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return text
}
