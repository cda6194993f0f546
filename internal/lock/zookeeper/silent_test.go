package zookeeper

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock/address"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSilentMember opens Lockers on two servers, one of which accepts connections and
// answers nothing. The library tries the servers in a random order.
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

// TestSilentAuthentication has the server fall silent before it checks the user.
func TestSilentAuthentication(t *testing.T) {
	t.Parallel()
	wire := testenv.NewWire(t, testenv.ZooKeeper(t))
	b := open(t, wire.Addr(), 30*time.Second).backend
	wire.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	asked := time.Now()
	err := b.authenticate(ctx, address.Address{User: "user", Password: "password"})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(asked) > 5*time.Second {
		t.Errorf("it returned %v after %v", err, time.Since(asked))
	}
}
