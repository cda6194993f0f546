package etcd

import (
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tickKey returns the key of the job's last tick.
func (b *backend) tickKey(job string) string { return b.base + "ticks/" + job }

// LastTick returns the last recorded tick of the job, or 0 if there is none.
func (l *Locker) LastTick(ctx context.Context, job string) (int64, error) {
	tick, _, err := l.readTick(ctx, job)
	if err != nil {
		return 0, fmt.Errorf("reading the last tick of %s: %w", job, err)
	}
	return tick, nil
}

// readTick returns the tick and the revision of the key's last change. Both are 0 if there is no
// key.
func (l *Locker) readTick(ctx context.Context, job string) (tick, revision int64, err error) {
	found, err := l.backend.client.Get(ctx, l.backend.tickKey(job))
	if err != nil || len(found.Kvs) == 0 {
		return 0, 0, err
	}
	tick, err = strconv.ParseInt(string(found.Kvs[0].Value), 10, 64)
	return tick, found.Kvs[0].ModRevision, err
}

// RecordTick records the tick unless the same tick or a later one is recorded.
func (l *Locker) RecordTick(ctx context.Context, job string, tick int64) (recorded bool, err error) {
	for {
		last, revision, err := l.readTick(ctx, job)
		if err == nil && last < tick {
			var written *clientv3.TxnResponse
			written, err = l.backend.client.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision(l.backend.tickKey(job)), "=", revision)).
				Then(clientv3.OpPut(l.backend.tickKey(job), strconv.FormatInt(tick, 10))).
				Commit()
			if err == nil && !written.Succeeded { // another process has recorded a tick
				continue
			}
		}
		if err != nil {
			return false, fmt.Errorf("recording a tick of %s: %w", job, err)
		}
		return last < tick, nil
	}
}
