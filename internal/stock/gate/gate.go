// Package gate holds the gates that keep their counts in Redis. A ledger has
// three keys there:
//
//	holdfast:{LEDGERID}:count    hash: SKU → `EPOCH AVAILABLE IN_FLIGHT CHANGE FENCE`: units available, units in
//	                             flight, the number of the last change, the greatest fencing token seen
//	holdfast:{LEDGERID}:flight   hash: `SKU ORDERID` → record of the take in flight
//	holdfast:{LEDGERID}:burned   sorted set: `SKU TAKEID`, scored by the time at which it was burned
//
// So a call for many SKUs needs few commands. On a cluster each SKU has three keys
// of its own, holdfast:{LEDGERID:SKU}:count and so on, which may be on any server.
//
// A fourth key is for readers such as the gateway. It has the generation in use,
// the number of segments of each SKU (0 without segments) and the ledger's last
// heartbeat:
//
//	holdfast:{LEDGERID}:generation   string: `GENERATION SEGMENTS BEAT`
//
// A ledger whose orders are queued has two more keys. They need one server for all
// SKUs, so a cluster has none. See Journal.
//
//	holdfast:{LEDGERID}:journal   stream: the IDs of the queued orders, in the order of their arrival
//	holdfast:{LEDGERID}:queued    hash: ORDERID → `STREAMID TAKEID EPOCH,EPOCH BUYER SKU=UNITS,SKU=UNITS [TRACE] MICROSECONDS`:
//	                              the order's place in the stream, its take with the epoch of each line, the whole
//	                              order, its trace if there is one, and the time at which it was queued
//
// A record reads `TAKEID UNITS EPOCH MICROSECONDS BUYER SKU=UNITS,SKU=UNITS`: the
// units of this SKU, the epoch of the count that they came from, the time at which
// Redis cut them, and the whole order. So each record of an order is enough to
// recover it. A record is void if its epoch is not the count's: a later fill has
// replaced the count. The record of a queued order ends with its trace, if there
// is one, and the time at which it was queued.
//
// Script and ReadWrite are the gates that do the work. They differ only in Take.
// Locked runs ReadWrite under locks. Queue runs it with one consumer for each SKU.
// Segmented divides the SKUs of another gate into segments.
package gate

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// burnTime is how long a burned take stays burned. It is much longer than a
	// take can be on its way to Redis.
	burnTime = 10 * time.Minute
	// maxBurned bounds the burned takes under one key. Beyond it the oldest are
	// dropped.
	maxBurned = 100_000
	// callTimeout bounds the calls that cannot run on a caller's context: those
	// that serve many callers, and compensation.
	callTimeout = 2 * time.Second
)

// Gate is a stock.Gate that runs until it is closed. Call Close after the last
// call.
type Gate interface {
	stock.Gate
	Close()
}

// counts implements every method of Gate except Take and Close. Script and
// ReadWrite embed it.
type counts struct {
	ledgerID     uuid.UUID
	client       redis.UniversalClient
	cluster      bool                     // each SKU has keys of its own
	ledgerPrefix string                   // of every key; the hash tag is still open
	shared       keys                     // of all SKUs; empty on a cluster
	running      *atomic.Pointer[scripts] // of the generation in use
}

func newCounts(client redis.UniversalClient, ledgerID uuid.UUID) counts {
	_, cluster := client.(*redis.ClusterClient)
	c := counts{
		ledgerID: ledgerID, client: client, cluster: cluster,
		ledgerPrefix: "holdfast:{" + ledgerID.String(), running: new(atomic.Pointer[scripts]),
	}
	c.running.Store(newScripts(ledgerID, 0)) // the service never loads generation 0, so they cannot run
	if !cluster {
		c.shared = keysOf(c.ledgerPrefix + "}")
	}
	return c
}

// keys are the keys of one hash slot.
type keys struct{ count, flight, burned string }

func keysOf(prefix string) keys {
	return keys{count: prefix + ":count", flight: prefix + ":flight", burned: prefix + ":burned"}
}

// keys returns the keys that hold the SKU.
func (c *counts) keys(sku stock.SKU) keys {
	if !c.cluster {
		return c.shared
	}
	return keysOf(c.keyPrefix(sku))
}

// keyPrefix returns the prefix of keys that hold only this SKU.
func (c *counts) keyPrefix(sku stock.SKU) string { return c.ledgerPrefix + ":" + string(sku) + "}" }

// detached returns a context with ctx's values that ends after callTimeout, not
// with ctx.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
}
