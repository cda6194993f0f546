package zookeeper

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestDigest locks as a user who may use one node only. The nodes above it belong to
// another user.
func TestDigest(t *testing.T) {
	t.Parallel()
	server := testenv.OwnZooKeeper(t)
	admin := connect(t, server.Addr())
	mustDo := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mustDo(admin.AddAuth("digest", []byte("admin:adm1n")))
	_, err := admin.Create("/ours", nil, 0, zk.AuthACL(zk.PermAll))
	mustDo(err)
	_, err = admin.Create("/ours/shop", nil, 0, zk.DigestACL(zk.PermAll, "shop", "p@ss"))
	mustDo(err)
	_, err = admin.SetACL("/", slices.Concat(zk.DigestACL(zk.PermAll, "admin", "adm1n"), zk.WorldACL(zk.PermRead)), -1)
	mustDo(err)

	address := fmt.Sprintf("shop:p%%40ss@%s/ours/shop", server.Addr())
	wire := testenv.NewWire(t, server.Addr())
	ours := open(t, address, locktest.LongLease)
	others := open(t, fmt.Sprintf("shop:p%%40ss@%s/ours/shop", wire.Addr()), locktest.LongLease)
	lease := locktest.MustLock(t, ours, "a/b")
	locktest.MustBeHeld(t, others, "a/b")
	waiting := locktest.LockAsync(t.Context(), others, "a/b")
	locktest.MustWait(t, waiting)
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
	mustCut(t, wire) // the new connection must log in again
	testenv.Await(t, "the instance locks again", func() bool {
		lease, err := others.TryLock(t.Context(), "a/b")
		return err == nil && lease.Unlock(t.Context()) == nil
	})

	nodes, _, err := connect(t, server.Addr()).Children("/ours/shop/locks/a/b")
	if !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a client without credentials may list the contenders: %v, %v", nodes, err)
	}
	lease = locktest.MustLock(t, others, "a/b") // the server deletes empty nodes, and with the node the reason for the retry
	for what, address := range map[string]string{
		"a wrong password": fmt.Sprintf("shop:wrong@%s/ours/shop", server.Addr()),
		"no user":          fmt.Sprintf("%s/ours/shop", server.Addr()),
		"the default root": fmt.Sprintf("shop:p%%40ss@%s", server.Addr()),
	} {
		refused := open(t, address, locktest.LongLease)
		if lease, err := refused.TryLock(t.Context(), "a/b"); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("%s: TryLock returned %v, %v, want %v", what, lease, err, zk.ErrNoAuth)
		}
		ended := make(chan struct{})
		go func() {
			refused.backend.work.Wait()
			close(ended)
		}()
		testenv.Receive(t, what+": the requests end", ended)
	}
	locktest.MustUnlock(t, lease)
}
