package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// storm is the plan of one run: which instances sell from one ledger, one strategy after another,
// what their buyers order, and the faults of their stores.
type storm struct {
	seed       uint64
	noGuard    bool
	idle       time.Duration // age from which a consumer claims orders of another one
	sql, redis []faults.Fault
	skus       []stock.SKU
	waves      []wave
}

// wave is a part of a storm. The requests and the faults of earlier waves may still be
// under way.
type wave struct {
	launches []launch // launches of one strategy, one after the other
	requests []buyerRequest
	faults   []waveFault
	pause    time.Duration // pause before the next wave
}

// launch is the start of an instance.
type launch struct{ strategy string }

// buyerRequest is a request of a buyer.
type buyerRequest struct {
	order.Request
	at       int           // number of the instance
	after    time.Duration // time since the wave began
	patience time.Duration // how long the buyer waits for an answer
}

// waveFault is data that Redis loses, or a sweep at a bad moment.
type waveFault struct {
	kind  waveFaultKind
	at    int // number of the instance
	after time.Duration
}

type waveFaultKind string

const (
	sweeps        waveFaultKind = "sweep"
	losesCount    waveFaultKind = "delete a count"
	losesStream   waveFaultKind = "delete the stream of the journal"
	losesAllRedis waveFaultKind = "empty Redis"
)

// inject injects the fault.
func (f waveFault) inject(ctx context.Context, r *rig, at *instance, sku stock.SKU) error {
	keys := "holdfast:{" + r.ledgerID.String() + "}:"
	switch f.kind {
	case sweeps:
		return at.Sweep(ctx)
	case losesCount:
		return r.shop.redis.HDel(ctx, keys+"count", string(sku)).Err()
	case losesStream:
		return r.shop.redis.Del(ctx, keys+"journal").Err()
	case losesAllRedis:
		return r.deleteKeys(ctx, "holdfast:{"+r.ledgerID.String()+"*")
	}
	return fmt.Errorf("unknown fault %q", f.kind)
}

// losesQueue reports whether queued orders may be lost permanently.
func (s storm) losesQueue() bool {
	return slices.ContainsFunc(s.waves, func(w wave) bool {
		return slices.ContainsFunc(w.faults, func(f waveFault) bool { return f.kind == losesAllRedis })
	})
}

// String returns the details that the log of the run does not have.
func (s storm) String() string {
	list := func(fs []faults.Fault) string {
		text := make([]string, len(fs))
		for i, f := range fs {
			text[i] = "\n\t" + f.String()
		}
		return strings.Join(text, "")
	}
	return fmt.Sprintf("-storm.seed=%d -storm.silent=%d: guard %v, orders are claimed after %v\nfaults of SQL:%s\nfaults of Redis:%s",
		s.seed, *stormSilent, !s.noGuard, s.idle, list(s.sql), list(s.redis))
}

const (
	firstBuyers, laterBuyers = 8, 3 // new buyers in a wave
	maxWaves                 = 4    // waves have at most two instances each
)

// newStorm draws a storm. A seed always gives the same storm, except for the number of the run in
// its names.
func newStorm(database string, seed uint64, run int64) storm {
	d := drawing{Rand: rand.New(rand.NewPCG(seed, 3)), run: run, database: database}
	d.skus = []stock.SKU{stock.SKU(fmt.Sprintf("a.%d", run)), stock.SKU(fmt.Sprintf("b.%d", run))}
	d.seed = seed
	d.noGuard = d.IntN(3) > 0
	d.idle = pick(d.Rand, 0, 20*time.Millisecond, 200*time.Millisecond)
	d.drawFaults(database)
	d.addWave(firstBuyers, launch{queues}, launch{queues})
	for range d.IntN(maxWaves) {
		d.addWave(laterBuyers, d.launches()...)
	}
	return d.storm
}

// drawing is a storm that is being drawn.
type drawing struct {
	*rand.Rand
	storm
	run       int64
	database  string
	instances int
	buyers    []order.Request
}

// pick draws one of the values.
func pick[T any](r *rand.Rand, among ...T) T { return among[r.IntN(len(among))] }

// drawFaults draws the faults of both stores. Few storms have servers that do not answer, because
// they last until the service's timeouts have passed.
func (d *drawing) drawFaults(database string) {
	var silent []faults.Kind
	if d.Uint64N(*stormSilent) == 0 {
		silent = slowKinds
	}
	lost := lostKinds[:3] // a store that stays unreachable ends the storm
	kinds := slices.Concat(lost, databaseKinds[database], silent)
	for range d.IntN(5) {
		f := faults.Fault{Kind: pick(d.Rand, kinds...), Only: pick(d.Rand,
			"", commits, voids, reads, "INSERT INTO orders", "INSERT INTO order_lines", "DELETE FROM orders", "UPDATE orders", "UPDATE stock")}
		d.sql = append(d.sql, d.place(f, f.Only == "" || f.Only == commits))
	}
	for range d.IntN(3) {
		f := faults.Fault{Kind: pick(d.Rand, slices.Concat(lost, redisKinds, silent)...), Only: pick(d.Rand, "evalsha", "hget", "eval ", "xack")}
		if slices.Contains(lost, f.Kind) && d.IntN(4) == 0 {
			f.Only = "" // any command may lose its connection, but not every command can return every error
		}
		d.redis = append(d.redis, d.place(f, f.Only == ""))
	}
}

// place draws the place of the fault. frequent means that many statements match it.
func (d *drawing) place(f faults.Fault, frequent bool) faults.Fault {
	f.Nth = 1 + d.IntN(6)
	if frequent {
		f.Nth = 1 + d.IntN(25)
	}
	if d.IntN(2) == 0 {
		f.Times = 1 + d.IntN(4)
	}
	return f
}

// launches draws the instances that take the stock over: one or two of one sound strategy.
func (d *drawing) launches() (among []launch) {
	sound := slices.DeleteFunc(strategiesOn(d.database), func(s assembly.Spec) bool { return !s.Sound })
	spec := pick(d.Rand, sound...)
	for range 1 + d.IntN(2) {
		among = append(among, launch{spec.Name})
	}
	return among
}

// addWave draws a wave with these launches and this number of new buyers. In most waves, buyers use
// only its own instances, as behind a load balancer. In some, they use earlier ones, too.
func (d *drawing) addWave(buyers int, launches ...launch) {
	from := d.instances
	if d.IntN(3) == 0 {
		from = 0
	}
	d.instances += len(launches)
	w := wave{launches: launches, pause: time.Duration(d.IntN(150)) * time.Millisecond}
	known := len(d.buyers)
	d.addBuyers(buyers)
	for n, r := range d.buyers {
		times := 1 + d.IntN(3)
		switch {
		case r.Key == "" && n < known: // a repeat without a key would be another order
			continue
		case r.Key == "":
			times = 1
		}
		for range times {
			w.requests = append(w.requests, buyerRequest{
				Request: r, at: d.instanceFrom(from), after: time.Duration(d.IntN(40)) * time.Millisecond,
				patience: time.Duration(20+d.IntN(3000)) * time.Millisecond,
			})
		}
	}
	for range d.IntN(4) {
		w.faults = append(w.faults, waveFault{
			kind: pick(d.Rand, sweeps, losesCount, losesStream, losesAllRedis),
			at:   d.instanceFrom(from), after: time.Duration(d.IntN(60)) * time.Millisecond,
		})
	}
	d.waves = append(d.waves, w)
}

// instanceFrom draws the number of an instance that has started, at least the given number.
func (d *drawing) instanceFrom(from int) int { return from + d.IntN(d.instances-from) }

// addBuyers draws new buyers. Most have a key, and no buyer uses it for other lines.
func (d *drawing) addBuyers(n int) {
	a, b := d.skus[0], d.skus[1]
	for range n {
		r := order.Request{Buyer: fmt.Sprintf("buyer-%d-%d", d.run, len(d.buyers)), Lines: []stock.Line{{SKU: a, Quantity: 1 + d.Int64N(2)}}}
		switch d.IntN(4) {
		case 0:
			r.Lines = []stock.Line{{SKU: a, Quantity: 1}, {SKU: b, Quantity: 1}}
		case 1:
			r.Lines = []stock.Line{{SKU: b, Quantity: 1}}
		}
		if d.IntN(4) > 0 {
			r.Key = "k"
		}
		d.buyers = append(d.buyers, r)
	}
}
