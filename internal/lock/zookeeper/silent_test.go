package zookeeper

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSilentMember opens Lockers on two servers. One server accepts connections and does not
// answer. The library tries the servers in a random order, so the test opens Lockers until one has
// tried the silent server first. A Locker on the silent server alone must give up.
func TestSilentMember(t *testing.T) {
	t.Parallel()
	server := testenv.ZooKeeper(t)
	silent := testenv.NewWire(t, server)
	silent.Freeze()
	for !silent.Holding() {
		l, err := New(t.Context(), silent.Addr()+","+server, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
	opened := make(chan error, 1)
	go func() {
		_, err := New(t.Context(), silent.Addr(), 30*time.Second)
		opened <- err
	}()
	if err := testenv.Receive(t, "a silent server is given up", opened); err == nil || !strings.Contains(err.Error(), "no session after") {
		t.Errorf("on a silent server: %v", err)
	}
}
