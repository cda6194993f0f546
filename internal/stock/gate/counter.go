package gate

import (
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Counter keeps the counts of a ledger's SKUs in Redis, and the records of the takes in flight. It
// does all operations on counts except taking units, which a gate does. It is safe for concurrent
// use, also by several processes that share a Redis.
//
// A Counter runs under one generation. It ignores counts that were filled under another generation,
// and scripts of earlier generations cannot run under this one. If Redis cannot run the generation,
// its calls do nothing and return stock.ErrNoGeneration.
type Counter struct {
	ledgerID     uuid.UUID
	client       redis.UniversalClient
	layout       Layout
	cluster      bool                    // each SKU has keys of its own
	ledgerPrefix string                  // prefix of every key; the hash tag is not closed yet
	shared       keys                    // keys shared by all SKUs; empty on a cluster
	scripts      atomic.Pointer[scripts] // of the generation in use
}

// Layout says how a Counter keeps the count of a SKU. It is part of the strategy's layout, and so
// of the generation. It is not stored with the counts. The zero value keeps one count for each SKU,
// without locks.
type Layout struct {
	// Segments is the number of counts into which each SKU is divided, up to MaxSegments. 0 means
	// that SKUs are not divided. Each segment has its own count and records, as if it were a SKU
	// with the name SKU/SEGMENT.
	Segments int
	// Locks guard every change of available units. If it is nil, there are no locks.
	Locks *Locks
}

// NewCounter returns the counter of the ledger in Redis. It has no generation until Use is called.
// The caller closes the client.
func NewCounter(client redis.UniversalClient, ledgerID uuid.UUID, layout Layout) *Counter {
	_, cluster := client.(*redis.ClusterClient)
	c := &Counter{
		ledgerID: ledgerID, client: client, layout: layout, cluster: cluster,
		ledgerPrefix: "holdfast:{" + ledgerID.String(),
	}
	c.scripts.Store(newScripts(ledgerID, 0)) // the service never loads generation 0, so the scripts of generation 0 cannot run
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

// keys returns the keys that hold the SKU, or the segment.
func (c *Counter) keys(sku stock.SKU) keys {
	if !c.cluster {
		return c.shared
	}
	return keysOf(c.keyPrefix(sku))
}

// keyPrefix returns the prefix of keys that hold only this SKU.
func (c *Counter) keyPrefix(sku stock.SKU) string { return c.ledgerPrefix + ":" + string(sku) + "}" }
