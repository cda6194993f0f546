package main

import (
	"net/http"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSoldOutMemory sells out through two instances without a gate, which both remember that. If
// units are added or returned through one instance, it must sell them at once, and the other one
// soon.
func TestSoldOutMemory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		strategy string
		on       pair
	}{
		{"merged", mariaDBAndRedis},
		{"conditional", postgresAndRedis},
	} {
		t.Run(test.strategy, func(t *testing.T) {
			t.Parallel()
			args := append(migrated(t, test.on.flags(t)), "--strategy", test.strategy, "--sold-out-memory", "1s")
			first, second := serveHere(t, args...), serveHere(t, args...)
			order := func(want int, from instance) []byte {
				t.Helper()
				return mustCall(t, want, http.MethodPost, from.URL()+"/orders", orderBody("buyer", "last", 1))
			}
			buy := func() (id string) {
				t.Helper()
				return decoded[placed](t, order(http.StatusCreated, first)).ID
			}
			soldOut := func() {
				t.Helper()
				for range 2 {
					order(http.StatusConflict, first)
					order(http.StatusConflict, second)
				}
			}
			// The second instance asks the ledger again within a second.
			buySoon := func() {
				t.Helper()
				testenv.Await(t, "the other instance sells the unit", func() bool {
					status, _, err := call(t.Context(), http.MethodPost, second.URL()+"/orders", orderBody("buyer", "last", 1))
					return err == nil && status == http.StatusCreated
				})
			}
			setStock(t, first.URL(), "last", 1)
			id := buy()

			soldOut()
			setStock(t, first.URL(), "last", 2)
			buy()

			soldOut()
			mustCall(t, http.StatusOK, http.MethodPost, first.URL()+"/orders/"+id+"/cancel", "")
			id = buy()

			soldOut()
			setStock(t, first.URL(), "last", 3)
			buySoon()

			soldOut()
			mustCall(t, http.StatusOK, http.MethodPost, first.URL()+"/orders/"+id+"/cancel", "")
			buySoon()
			if a := waitAtRest(t, first.URL(), "last"); a.Sold != 3 {
				t.Errorf("%d of 3 units are sold", a.Sold)
			}
		})
	}
}
