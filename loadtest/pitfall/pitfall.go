// Package pitfall reproduces the mistakes that articles about locks and flash sales warn about.
// Each experiment runs a mistake and its fixes on real servers. The order of the steps is fixed.
// The result is a timeline of each actor's steps, and the damage.
package pitfall

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// Pitfall is a mistake, with its fixes.
type Pitfall struct {
	Name                string
	Title, TitleChinese string // the usual first version of the code
	Versions            []Version
}

// Version is one way of writing the code. A flawed version must do damage, and a fixed one must
// not.
type Version struct {
	Title, TitleChinese string
	Flawed              bool
	Needs               Server // empty if the version needs no server
	Own                 bool   // the version kills servers, and so always starts its own
	Run                 run
}

// run runs a version. If it cannot, it calls Fatalf of the stage.
type run func(ctx context.Context, s *Stage) Damage

// Server is a kind of server, named after its program.
type Server string

// The servers that experiments need.
const (
	Redis     Server = "redis-server"
	MariaDB   Server = "mariadbd"
	ZooKeeper Server = "zookeeper"
	Etcd      Server = "etcd"
)

// Servers are the running servers to use: the URL of a Redis, the URL of a database of MariaDB,
// where experiments create tables, and the host:port of a ZooKeeper. If a version needs another
// one, the stage starts it.
type Servers map[Server]string

// available reports whether the version's server is named or installed.
func (v Version) available(servers Servers) bool {
	return v.Needs == "" || !v.Own && servers[v.Needs] != "" || testenv.Installed(string(v.Needs))
}

// Damage is the harm that a version does. The zero Damage means none.
type Damage struct {
	Amount        float64
	Text, Chinese string // the amount with its unit, and a description
	Unsold        bool   // units were left although an order should have got them; no version may do that
}

// units returns a damage in units.
func units(n int, what string) Damage {
	d := Damage{Amount: float64(n), Text: fmt.Sprintf("%d units %s", n, what), Chinese: fmt.Sprintf(chinese[what], n)}
	switch n {
	case 0:
		return Damage{}
	case 1:
		d.Text = "1 unit " + what
	}
	return d
}

// unsold returns the damage of units that were left although an order should have got them.
func unsold(n int, what string) Damage {
	d := units(n, what)
	d.Unsold = true
	return d
}

// sale returns the damage of selling too many units, or too few. Orders must have been placed for
// more units than expected.
func sale(sold, expected int) Damage {
	if sold < expected {
		return unsold(expected-sold, "left, although an order was refused")
	}
	return units(sold-expected, "oversold")
}

// lost returns a damage in seconds.
func lost(d time.Duration, what string) Damage {
	return Damage{Amount: d.Seconds(), Text: fmt.Sprintf("%.1f s: %s", d.Seconds(), what), Chinese: fmt.Sprintf("%.1f 秒：%s", d.Seconds(), chinese[what])}
}

// Table returns all pitfalls, in the order of the documents.
func Table() []Pitfall {
	return slices.Concat(setNX(), reentry(), leases(), failovers(), herds(), scopes(), fences(), noLocks(), rows(), counts(), commits(), distributed())
}

// Names returns the names of all pitfalls.
func Names() []string {
	var names []string
	for _, p := range Table() {
		names = append(names, p.Name)
	}
	return names
}

// maxRun bounds the run of one version.
const maxRun = 3 * time.Minute

// Run runs all versions of the pitfall that have their server, one after the other.
func (p Pitfall) Run(ctx context.Context, servers Servers) results.Experiment {
	e := results.Experiment{Name: p.Name, Title: p.Title, TitleChinese: p.TitleChinese}
	for _, v := range p.Versions {
		e.Versions = append(e.Versions, v.run(ctx, servers))
	}
	return e
}

func (v Version) run(ctx context.Context, servers Servers) results.Version {
	r := results.Version{Title: v.Title, TitleChinese: v.TitleChinese, Flawed: v.Flawed}
	if !v.available(servers) {
		r.NotRun, r.NotRunChinese = "needs "+string(v.Needs), "需要 "+string(v.Needs)
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, maxRun)
	defer cancel()
	damage, events, err := perform(ctx, servers, v.Run)
	r.Damage, r.DamageChinese, r.Events = damage.Text, damage.Chinese, events
	switch {
	case err != nil:
		r.Fault = err.Error()
	case damage.Unsold:
		r.Fault = "it should sell all units"
	case v.Flawed && damage.Amount == 0:
		r.Fault = "it should do damage, and did none"
	case !v.Flawed && damage.Amount > 0:
		r.Fault = "it should do no damage"
	}
	r.FaultChinese = cmp.Or(chinese[r.Fault], r.Fault)
	return r
}
