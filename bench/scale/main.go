// Command scale simulates one hot SKU: clients, the CPU that everything shares, transactions
// of an instance, the row that they lock, the network and the commit. It prints what it
// predicts for points that were measured, with the error, and then what it predicts beyond
// them. docs/scale.md explains the tables.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
)

func main() { command.Main("scale", run) }

// settings are the command line. The tags define the flags.
type settings struct {
	Seed   uint64        `default:"1" help:"Seed of the simulation; the same seed gives the same figures."`
	During time.Duration `default:"3s" help:"Simulated duration of each load."`
	Image  string        `placeholder:"FILE" help:"Draw the limit of one row over the commit time into this SVG file."`
}

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// The simulated strategies. The CPU times are measured (docs/benchmarks.md and scale.md).
// How the CPU time of the database divides into a part for each order and a part for each
// transaction is an assumption.
var (
	merged = strategy{name: "merged", group: 128, parallel: 1, trips: 1, rows: 1, service: 40 * us, database: 20 * us, each: 150 * us}
	lua    = strategy{name: "lua", group: 128, parallel: 1, trips: 1, rows: 1, service: 54 * us, redis: 14 * us, database: 20 * us, each: 150 * us}
	// conditional sends one order in a transaction of several statements.
	conditional = strategy{name: "conditional", group: 1, parallel: 24, trips: 4, locked: 3, rows: 1, service: 150 * us, database: 30 * us, each: 370 * us}
)

// here returns the machine of the measured points. The CPU time of the load generator was
// measured with the bare handler. The time of a commit is calibrated: with it, the
// simulation gives the measured rate of merged on loopback.
func here(clients, instances int, network time.Duration) setup {
	return setup{clients: clients, instances: instances, cores: 2, generator: 13 * us, network: network, commit: 100 * us}
}

// slow returns a machine whose database delays each commit. commit is the measured duration
// of a small transaction that runs alone there.
func slow(instances int, commit time.Duration) setup {
	p := here(64, instances, 0)
	p.commit = commit
	return p
}

// far returns machines whose CPU is no limit: 64 cores, and enough clients to fill every group.
func far(instances int, commit time.Duration) setup {
	return setup{clients: 512 * instances, instances: instances, cores: 64, generator: 13 * us, network: ms / 2, commit: commit}
}

// measured is a load that was measured, in orders a second.
type measured struct {
	what     string
	strategy strategy
	setup
	perSecond float64
}

// points are the measured points: Intel Xeon, 2 cores, commit dcd5ca0, with MariaDB; with slow
// commits, AMD EPYC, 2 cores, commit 8d96560, with PostgreSQL.
var points = []measured{
	{"loopback, 64 clients", merged, here(64, 1, 0), 18826},
	{"loopback, 64 clients", lua, here(64, 1, 0), 14189},
	{"2 ms, 1 instance", merged, here(128, 1, 2*ms), 10894},
	{"2 ms, 2 instances", merged, here(128, 2, 2*ms), 8799},
	{"2 ms, 4 instances", merged, here(128, 4, 2*ms), 7529},
	{"2 ms, 1 instance", lua, here(128, 1, 2*ms), 8731},
	{"2 ms, 2 instances", lua, here(128, 2, 2*ms), 7992},
	{"2 ms, 4 instances", lua, here(128, 4, 2*ms), 7788},
	{"2 ms, 1 instance", conditional, here(128, 1, 2*ms), 158},
	{"2 ms, 2 instances", conditional, here(128, 2, 2*ms), 155},
	{"2 ms, 4 instances", conditional, here(128, 4, 2*ms), 133},
	{"commit 5.5 ms, 1 instance", merged, slow(1, 5500*us), 4633},
	{"commit 5.5 ms, 4 instances", merged, slow(4, 5500*us), 1333},
	{"commit 5.5 ms, 4 instances", inSlots(8), slow(4, 5500*us), 4808},
	{"commit 20.9 ms, 1 instance", merged, slow(1, 20900*us), 1462},
	{"commit 20.9 ms, 2 instances", merged, slow(2, 20900*us), 767},
	{"commit 20.9 ms, 2 instances", inSlots(8), slow(2, 20900*us), 1462},
	{"commit 20.9 ms, 4 instances", merged, slow(4, 20900*us), 379},
	{"commit 20.9 ms, 4 instances", inSlots(8), slow(4, 20900*us), 1493},
	{"commit 20.9 ms, 8 instances", merged, slow(8, 20900*us), 192},
	{"commit 20.9 ms, 8 instances", inSlots(8), slow(8, 20900*us), 1479},
}

func run(_ context.Context, args []string, stdout, _ io.Writer) error {
	s := &settings{}
	check := func(*kong.Context) error { return command.Between("during", s.During, 100*ms, time.Minute) }
	if err := commandline.Parse(s, args, nil, stdout, check, kong.Name("go run ./bench/scale"),
		kong.Description("Simulates one hot SKU, compares the result with what was measured, and goes beyond it.")); err != nil {
		return err
	}
	s.predicted().WriteMarkdown(stdout)
	for _, t := range []*table.Table{s.rows(), s.slots(), s.distance()} {
		fmt.Fprintln(stdout)
		t.WriteMarkdown(stdout)
	}
	if s.Image == "" {
		return nil
	}
	var image bytes.Buffer
	s.draw(&image)
	return os.WriteFile(s.Image, image.Bytes(), 0o644)
}

// simulate returns the rate at which the strategy sells with the setup.
func (s settings) simulate(of strategy, on setup) outcome { return simulate(of, on, s.During, s.Seed) }

// predicted compares the simulation with the measured points.
func (s settings) predicted() *table.Table {
	t := table.New("", "strategy", "measured: orders/s", "simulated", "error", "orders in a transaction")
	for _, m := range points {
		o := s.simulate(m.strategy, m.setup)
		t.Add(m.what, "`"+m.strategy.name+"`", fmt.Sprintf("%.0f", m.perSecond), fmt.Sprintf("%.0f", o.perSecond),
			fmt.Sprintf("%+.0f %%", (o.perSecond/m.perSecond-1)*100), fmt.Sprintf("%.0f", o.group))
	}
	return t
}

var commits = []time.Duration{ms / 10, ms, 2 * ms, 5 * ms, 10 * ms, 20 * ms}

// rows shows the limit of one row: the orders of a group, divided by the time for which it
// locks the row.
func (s settings) rows() *table.Table {
	t := table.New("commit", "group ÷ (work + commit)", "`merged`, 1 instance", "4 instances", "`conditional`, 4 instances")
	for _, commit := range commits {
		held := merged.each + time.Duration(merged.group)*merged.database + commit
		t.Add(fmt.Sprint(commit), fmt.Sprintf("%.0f", float64(merged.group)/held.Seconds()),
			fmt.Sprintf("%.0f", s.simulate(merged, far(1, commit)).perSecond),
			fmt.Sprintf("%.0f", s.simulate(merged, far(4, commit)).perSecond),
			fmt.Sprintf("%.0f", s.simulate(conditional, far(4, commit)).perSecond))
	}
	return t
}

var slots = []int{1, 2, 4, 8}

// inSlots returns the strategy slots: merged over n rows of a SKU. Each instance uses one of them.
func inSlots(n int) strategy {
	s := merged
	s.name, s.rows = "slots", n
	return s
}

// slots shows the rates of eight instances that sell one SKU from several rows.
func (s settings) slots() *table.Table {
	t := table.New("commit", "1 row", "2 slots", "4 slots", "8 slots", "no row is locked")
	for _, commit := range commits {
		cells := []any{fmt.Sprint(commit)}
		for _, n := range append(slots, 0) {
			cells = append(cells, fmt.Sprintf("%.0f", s.simulate(inSlots(n), far(8, commit)).perSecond))
		}
		t.Add(cells...)
	}
	return t
}

// distance shows how the round trip between service and database limits the rate of a row.
func (s settings) distance() *table.Table {
	t := table.New("round trip", "`merged`", "`conditional`")
	for _, network := range []time.Duration{0, ms / 2, 2 * ms, 10 * ms} {
		p := far(4, ms)
		p.network = network
		t.Add(fmt.Sprint(network), fmt.Sprintf("%.0f", s.simulate(merged, p).perSecond), fmt.Sprintf("%.0f", s.simulate(conditional, p).perSecond))
	}
	return t
}
