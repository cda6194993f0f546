package order

import (
	"fmt"
	"strings"
	"testing"

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
