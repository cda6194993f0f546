package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// shownPrefix returns the common prefix of the keys of the texts that are listed under the name:
// BASE/holders/LENGTH/NAME/LEASE. Because of the length, no name's prefix contains another name's
// keys.
func (b *backend) shownPrefix(name string) string {
	return fmt.Sprintf("%sholders/%d/%s/", b.base, len(name), name)
}

// Show lists text under the name, beside the texts of other processes, until hide is called. The
// text belongs to a session, so it disappears when the process dies, as locks do.
func (l *Locker) Show(ctx context.Context, name, text string) (hide func(context.Context), err error) {
	b := l.backend
	s, err := b.takeSession(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing a holder of %s: %w", name, err)
	}
	key := fmt.Sprintf("%s%x", b.shownPrefix(name), s.id)
	if _, err := b.client.Put(ctx, key, text, clientv3.WithLease(s.id)); err != nil {
		_ = s.end() // also deletes the key, if the request has written it
		return nil, fmt.Errorf("listing a holder of %s: %w", name, err)
	}
	return func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
		defer cancel()
		if _, err := b.client.Delete(ctx, key); err != nil {
			_ = s.end() // also deletes the key
			return
		}
		b.returnSession(s)
	}, nil
}

// Shown returns the texts that are listed under the name.
func (l *Locker) Shown(ctx context.Context, name string) ([]string, error) {
	found, err := l.backend.client.Get(ctx, l.backend.shownPrefix(name), clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("listing the holders of %s: %w", name, err)
	}
	var texts []string
	for _, kv := range found.Kvs {
		texts = append(texts, string(kv.Value))
	}
	return texts, nil
}
