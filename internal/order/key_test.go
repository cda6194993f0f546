package order

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestOrderIDs checks that the ID of a key never changes, that different keys have
// different IDs, and that different ledgers give a key different IDs.
func TestOrderIDs(t *testing.T) {
	r, ledgerID := Request{Buyer: "ab", Key: "c"}, uuid.New()
	if orderID(ledgerID, r, 0) == orderID(uuid.New(), r, 0) {
		t.Error("buyer and key are enough to compute the ID")
	}
	if got := orderID(ledgerID, r, 0).String(); got != orderID(ledgerID, r, 0).String() || got[14] != '8' || !strings.ContainsRune("89ab", rune(got[19])) {
		t.Errorf("%s is not stable, or not of version 8", got)
	}
	const want = "ee7e5037-299e-8ae9-a030-63f73129524c"
	if got := orderID(uuid.UUID{1}, r, 2).String(); got != want {
		t.Errorf("the ID is %s, was %s: orders under keys are not found again", got, want)
	}
	seen := make(map[uuid.UUID]string)
	for _, r := range []Request{{Buyer: "ab", Key: "c"}, {Buyer: "a", Key: "bc"}, {Buyer: "abc", Key: " "}} {
		for voids := range 3 {
			id, name := orderID(ledgerID, r, voids), fmt.Sprint(r.Buyer, "/", r.Key, "/", voids)
			if seen[id] != "" {
				t.Errorf("%s and %s share an ID", seen[id], name)
			}
			seen[id] = name
		}
	}
	a, b := orderID(ledgerID, Request{Buyer: "x"}, 0), orderID(ledgerID, Request{Buyer: "x"}, 0)
	if a == b || a.Version() != 7 {
		t.Errorf("without a key: %v and %v", a, b)
	}
}

// TestReplay_Queued checks that a replay of a queued order gets the status queued and no payment
// deadline, even after the ledger has recorded the order with one.
func TestReplay_Queued(t *testing.T) {
	o := Order{Status: Queued, CreatedAt: time.Now()}
	first, replayed, err := replay(Request{Key: "key-1"}, &o)
	o.Status, o.QueuedUntil, o.ExpiresAt = Paid, o.CreatedAt.Add(time.Second), o.CreatedAt.Add(time.Hour)
	again, replayedAgain, errAgain := replay(Request{Key: "key-1"}, &o)
	for _, answer := range []Order{first, again} {
		if answer.Status != Queued || !answer.ExpiresAt.IsZero() || !answer.CreatedAt.Equal(o.CreatedAt) {
			t.Errorf("answered %+v", answer)
		}
	}
	if err := errors.Join(err, errAgain); err != nil || !replayed || !replayedAgain {
		t.Errorf("replayed %v and %v, %v", replayed, replayedAgain, err)
	}
}
