package zookeeper

import "github.com/go-zookeeper/zk"

// watch is a watch of a node. All callers of this process that wait for the node's deletion share
// it. The library cannot end a watch, so the watches of waiters that give up would accumulate while
// the node exists.
type watch struct {
	fired chan struct{} // closed when the node has changed, or the watch has failed
	err   error         // why the watch has failed; not set before fired is closed
}

// watch returns the shared watch of the node, and begins it if there is none. It returns
// zk.ErrNoNode if the node does not exist.
func (b *backend) watch(path string) (*watch, error) {
	b.mu.Lock()
	w := b.watches[path]
	b.mu.Unlock()
	if w != nil {
		return w, nil
	}
	// GetW leaves no watch behind if the node does not exist. ExistsW would.
	_, _, events, err := b.conn.GetW(path)
	if err != nil {
		return nil, err
	}
	w = &watch{fired: make(chan struct{})}
	b.mu.Lock()
	b.watches[path] = w
	b.mu.Unlock()
	b.start(func() {
		select {
		case e := <-events:
			w.err = e.Err
		case <-b.ctx.Done():
			w.err = zk.ErrClosing
		}
		b.mu.Lock()
		if b.watches[path] == w { // another call may have replaced the watch
			delete(b.watches, path)
		}
		b.mu.Unlock()
		close(w.fired)
	})
	return w, nil
}
