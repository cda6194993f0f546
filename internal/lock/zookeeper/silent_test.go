package zookeeper

import (
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSilentMember opens Lockers on two servers, one of which accepts connections and does not
// answer. The library tries the servers in a random order.
func TestSilentMember(t *testing.T) {
	t.Parallel()
	server := testenv.ZooKeeper(t)
	silent := testenv.NewWire(t, server)
	silent.Freeze()
	var opening sync.WaitGroup
	for range 6 {
		opening.Go(func() {
			l, err := New(t.Context(), silent.Addr()+","+server, 30*time.Second)
			if err != nil {
				t.Error(err)
				return
			}
			_ = l.Close()
		})
	}
	opening.Wait()
}
