package session_test

import (
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock/mysql"
	"github.com/holdfast-stock/holdfast/internal/lock/postgres"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSilentWhileOpening makes the server stop answering in the middle of New, while a transaction
// of its probe is open.
func TestSilentWhileOpening(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		wire, dbURL := faults.NewWire(t, s.url)
		pool := storetest.Sessions(t, dbURL)
		t.Cleanup(wire.Close) // closed first, so that nothing waits for an answer
		open, unlock := postgres.New, "pg_advisory_unlock"
		if s.mysql() {
			open, unlock = mysql.New, "RELEASE_LOCK"
		}
		wire.Arm(faults.Fault{Kind: faults.Hung, Nth: 1, Times: faults.Always, Only: unlock},
			faults.Fault{Kind: faults.Hung, Nth: 1, Times: faults.Always, Only: "ROLLBACK"})
		failed := make(chan error, 1)
		go func() {
			_, err := open(t.Context(), pool, 2*time.Second)
			failed <- err
		}()
		if err := testenv.Receive(t, "New returns", failed); err == nil {
			t.Error("a Locker was opened on a silent server")
		}
	})
}
