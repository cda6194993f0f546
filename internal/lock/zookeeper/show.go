package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
)

// holdersRoot returns the parent of the nodes HOLDERSROOT/NAME/_c_GUID-SEQUENCE, whose data
// are the texts that are listed under a name.
func (b *backend) holdersRoot() string { return b.base + "/holders" }

// shownNode returns the node of the name. A name with a slash is one node too.
func (b *backend) shownNode(name string) string { return b.holdersRoot() + "/" + url.PathEscape(name) }

// Show lists text under the name, beside the texts of other processes, until hide is
// called. The text belongs to the session, so it disappears as the locks of a dead
// process do.
func (l *Locker) Show(ctx context.Context, name, text string) (hide func(context.Context), err error) {
	b := l.backend
	shown := &grant{backend: b, parent: b.shownNode(name), guid: uuid.NewString()}
	answered := make(chan struct{})
	err = b.call(ctx, func() error {
		defer close(answered)
		return shown.createNode("", b.holdersRoot(), []byte(text))
	})
	if err != nil {
		b.start(func() {
			<-answered
			shown.deleteAsync() // the node may have been created despite the error
		})
		return nil, fmt.Errorf("listing a holder of %s: %w", name, err)
	}
	return shown.delete, nil
}

// Shown returns the texts that are listed under the name.
func (l *Locker) Shown(ctx context.Context, name string) ([]string, error) {
	var texts []string
	err := l.backend.call(ctx, func() (err error) {
		texts, err = l.backend.readShown(l.backend.shownNode(name))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing the holders of %s: %w", name, err)
	}
	return texts, nil
}

func (b *backend) readShown(parent string) (texts []string, err error) {
	nodes, _, err := b.conn.Children(parent)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	for _, node := range nodes {
		text, _, getErr := b.conn.Get(parent + "/" + node)
		switch {
		case getErr == nil:
			texts = append(texts, string(text))
		case !errors.Is(getErr, zk.ErrNoNode): // the holder is gone
			err = getErr
		}
	}
	return texts, err
}
