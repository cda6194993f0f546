// Package gate holds the gates that keep their counts in Redis. A Counter keeps the counts: it
// fills, adjusts and reads them, and ends takes. A gate is built on a Counter, and decides how
// units are taken from it. A ledger has three keys in Redis:
//
//	holdfast:{LEDGERID}:count    hash: SKU → `EPOCH AVAILABLE IN_FLIGHT CHANGE FENCE`: units
//	                             available, units in flight, the number of the last change, the
//	                             greatest fencing token seen
//	holdfast:{LEDGERID}:flight   hash: `SKU ORDERID` → record of the take in flight
//	holdfast:{LEDGERID}:burned   sorted set: `SKU TAKEID`, scored by the time at which it was burned
//
// So a call for many SKUs needs few commands. On a cluster each SKU has three keys of its own,
// holdfast:{LEDGERID:SKU}:count and so on, which may be on any server.
//
// A fourth key is for readers such as the gateway. It has the generation in use, the number of
// segments of each SKU (0 without segments) and the ledger's last heartbeat:
//
//	holdfast:{LEDGERID}:generation   string: `GENERATION SEGMENTS BEAT`
//
// A ledger whose orders are queued has two more keys. They need one server for all SKUs, so a
// cluster has none. See Journal.
//
//	holdfast:{LEDGERID}:journal   stream: the IDs of the queued orders, in order of arrival
//	holdfast:{LEDGERID}:queued    hash: ORDERID → `STREAMID TAKEID EPOCH,EPOCH BUYER
//	                              SKU=UNITS,SKU=UNITS [TRACE] MICROSECONDS`: the order's place in
//	                              the stream, its take with the epoch of each line, the whole
//	                              order, its trace if there is one, and the time at which it was
//	                              queued
//
// A record reads `TAKEID UNITS EPOCH MICROSECONDS BUYER SKU=UNITS,SKU=UNITS`. It has the units of
// this SKU, the epoch of their count, the time at which Redis cut them, and the whole order. So
// each record of an order is enough to recover it. A record is void if its epoch is not the
// count's: a later fill has replaced the count. The record of a queued order ends with its trace,
// if there is one, and the time at which it was queued.
//
// Script and ReadWrite are the gates that do the work. Script needs no locks, and ReadWrite runs
// under those of its Counter, if there are any. Queue runs ReadWrite with one consumer for each
// SKU. Segmented takes units from the segments of another gate.
package gate

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// burnTime is how long a burned take stays burned. It is much longer than a
	// take can be on its way to Redis.
	burnTime = 10 * time.Minute
	// maxBurned bounds the burned takes under one key. The oldest ones beyond that are dropped.
	maxBurned = 100_000
	// callTimeout bounds calls that several callers share, and so do not run on the context of one.
	callTimeout = 2 * time.Second
)

// Gate takes units from the counts of a Counter, and so admits or refuses a deduction
// before the database sees it. It is safe for concurrent use, also by several processes
// that share a Redis. If its strategy is sound, it never admits more units than its
// Counter was filled with.
type Gate interface {
	// Take cuts all lines or none, and records the deduction as in flight in the same step. The
	// same deduction sent again gets its first answer. If d.Again is true and a record of another
	// take of the order is left, Take cuts nothing and returns ErrInFlight.
	//
	// Errors: ErrSoldOut, ErrNotFilled and ErrLaterGeneration (as *Refusal), ErrInFlight,
	// ErrBurned, ErrBusy, ErrNoGeneration. See stock.NothingTaken. Any other error leaves the
	// outcome open: the caller must give the take back.
	Take(ctx context.Context, d stock.Deduction) (stock.Take, error)

	// Close ends the gate. Call it after the last call of Take.
	Close()
}
