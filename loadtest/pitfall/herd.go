package pitfall

import (
	"context"
	"fmt"
	"io"
	"log"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// herdSize is the number of waiters behind the first holder.
const herdSize = 10

// herds returns the pitfall of waiters that are all woken by each release.
func herds() []Pitfall {
	return []Pitfall{{
		Name: "herd", Title: "Every waiter watches the parent node", TitleChinese: "所有等待者都监视父节点（惊群）",
		Versions: []Version{
			{Title: "each release wakes all waiters", TitleChinese: "每次释放都唤醒所有等待者", Flawed: true, Needs: ZooKeeper, Run: watchParent},
			{Title: "each waiter watches its predecessor", TitleChinese: "每个等待者只监视自己的前一个节点", Needs: ZooKeeper, Run: watchPredecessor},
		},
	}}
}

func watchParent(ctx context.Context, s *Stage) Damage {
	everyone := func(waiters int) int { return waiters }
	return s.handOver(ctx, everyone, func(w *waiter) (<-chan zk.Event, error) {
		_, _, changed, err := w.conn.ChildrenW(w.parent)
		return changed, err
	})
}

func watchPredecessor(ctx context.Context, s *Stage) Damage {
	one := func(int) int { return 1 }
	return s.handOver(ctx, one, func(w *waiter) (<-chan zk.Event, error) {
		_, _, changed, err := w.conn.GetW(w.parent + "/" + w.predecessor)
		return changed, err
	})
}

// waiter is a contender for the lock, with its own session.
type waiter struct {
	conn         *zk.Conn
	parent, node string
	predecessor  string
}

// isFirst lists the contenders and sets the predecessor.
func (w *waiter) isFirst() (bool, error) {
	nodes, _, err := w.conn.Children(w.parent)
	if err != nil {
		return false, err
	}
	slices.Sort(nodes)
	position := slices.Index(nodes, w.node)
	if position < 0 {
		return false, fmt.Errorf("the node %s is gone", w.node)
	}
	if position > 0 {
		w.predecessor = nodes[position-1]
	}
	return position == 0, nil
}

// herd counts the waiters that watch a node, and those that woke up.
type herd struct {
	watching, woken atomic.Int32
}

// await watches until the waiter is the first contender.
func (h *herd) await(ctx context.Context, w *waiter, watch func(*waiter) (<-chan zk.Event, error)) error {
	for {
		changed, err := watch(w)
		if err != nil {
			return err
		}
		h.watching.Add(1)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		h.watching.Add(-1)
		h.woken.Add(1)
		if first, err := w.isFirst(); first || err != nil {
			return err
		}
	}
}

// handOver gives the lock to a holder and herdSize waiters, one after the other, and counts how
// often a waiter wakes up. A release must wake the given number of waiters. The next holder
// releases the lock when these have woken up, and all waiters watch again.
func (s *Stage) handOver(ctx context.Context, wakes func(waiters int) int, watch func(*waiter) (<-chan zk.Event, error)) Damage {
	type turn struct {
		holder *waiter
		err    error
	}
	var h herd
	holder, waiters := s.enqueue(ctx)
	turns := make(chan turn, len(waiters))
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	for _, w := range waiters {
		go func() { turns <- turn{w, h.await(waiting, w, watch)} }()
	}
	settled := func(woken, watching int) {
		s.await(ctx, "all waiters watch", func() bool {
			return int(h.woken.Load()) >= woken && int(h.watching.Load()) == watching
		})
	}
	settled(0, len(waiters))
	useless := 0
	for behind := len(waiters) - 1; behind >= 0; behind-- {
		s.check(holder.conn.Delete(holder.parent+"/"+holder.node, -1))
		next := <-turns
		s.check(next.err)
		holder = next.holder
		settled(wakes(behind+1), behind)
		woken := int(h.woken.Swap(0))
		s.at("queue", "a release: %d woken, 1 has the lock", woken)
		useless += woken - 1
	}
	s.at("queue", "%d wake-ups for %d grants", useless+len(waiters), len(waiters))
	if useless == 0 {
		return Damage{}
	}
	return Damage{Amount: float64(useless), Text: fmt.Sprintf("%d wake-ups for nothing", useless), Chinese: fmt.Sprintf("%d 次徒劳的唤醒", useless)}
}

// enqueue creates the nodes of the holder and the waiters, in this order.
func (s *Stage) enqueue(ctx context.Context) (holder *waiter, waiters []*waiter) {
	addr := s.zooKeeper()
	parent := "/" + strings.TrimSuffix(s.prefix, "_")
	for i := range herdSize + 1 {
		conn := s.connectZooKeeper(ctx, addr, longSession)
		if i == 0 {
			_, err := conn.Create(parent, nil, 0, zk.WorldACL(zk.PermAll))
			s.check(err)
			s.Cleanup(func() { _ = conn.Delete(parent, -1) })
		}
		node, err := conn.Create(parent+"/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		s.check(err)
		s.Cleanup(func() { _ = conn.Delete(node, -1) }) // runs before the clean-up of the parent node
		waiters = append(waiters, &waiter{conn: conn, parent: parent, node: path.Base(node)})
	}
	for _, w := range waiters {
		_, err := w.isFirst() // sets the predecessor
		s.check(err)
	}
	s.at("queue", "1 holder, %d waiters behind it", herdSize)
	return waiters[0], waiters[1:]
}

// connectZooKeeper returns a connection with a session.
func (s *Stage) connectZooKeeper(ctx context.Context, addr string, timeout time.Duration) *zk.Conn {
	conn, events, err := zk.Connect([]string{addr}, timeout, zk.WithLogger(log.New(io.Discard, "", 0)))
	s.check(err)
	s.Cleanup(conn.Close)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return conn
			}
		case <-ctx.Done():
			s.check(ctx.Err())
		}
	}
}
