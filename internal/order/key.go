package order

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// keyNamespace keeps IDs that are hashed from keys distinct from all other IDs.
var keyNamespace = uuid.MustParse("6f1d7a52-5a0e-4c8e-9a3b-0d2c1e4f7b68")

// orderID returns the ID of the order that r requests. Without a key it is a new ID. With a key it
// is the hash of the ledger's ID, the buyer, the key, and the number of void orders that the key
// has had. Each string is preceded by its length. The ledger's ID is secret, so others cannot
// compute the IDs of a buyer's orders.
func orderID(ledgerID uuid.UUID, r Request, voids int) uuid.UUID {
	if r.Key == "" {
		return uuid.Must(uuid.NewV7())
	}
	b := make([]byte, 0, 32+4+len(r.Buyer)+4+len(r.Key)+4)
	b = append(b, keyNamespace[:]...)
	b = append(b, ledgerID[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Buyer)))
	b = append(b, r.Buyer...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Key)))
	b = append(b, r.Key...)
	b = binary.BigEndian.AppendUint32(b, uint32(voids))
	sum := sha256.Sum256(b)
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8, variant of RFC 9562
	id[8] = id[8]&0x3f | 0x80
	return id
}

// movesKeyOn reports whether a key must use its next ID because of the order under its
// present ID. A void order stands for an order that was never committed, and a queued
// order may have been refused. Their IDs cannot be used again.
func movesKeyOn(o *Order) bool { return o.Status == Void || o.Status == TurnedDown }

// replay answers a request whose key already belongs to the order found. It repeats the first
// answer, even if the order's status has changed since. An order that was queued at first is
// answered as queued. replay returns ErrKeyReused if the lines differ.
func replay(r Request, found *Order) (first Order, replayed bool, err error) {
	switch {
	case r.Key == "": // an ID collision, which no client can cause
		return Order{}, false, fmt.Errorf("%w: order %s exists", stock.ErrUnavailable, found.ID)
	case !slices.Equal(r.Lines, found.Lines):
		return Order{}, false, ErrKeyReused
	}
	first = *found
	first.Status = Pending
	if found.Status == Queued || !found.QueuedUntil.IsZero() {
		first.Status, first.ExpiresAt = Queued, time.Time{}
	}
	return first, true, nil
}
