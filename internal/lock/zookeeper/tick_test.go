package zookeeper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestTickAnsweredLate has callers that give up before the servers have answered. The
// race detector reports an answer that is written to a result that was returned.
func TestTickAnsweredLate(t *testing.T) {
	t.Parallel()
	l := open(t, testenv.ZooKeeper(t), 10*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.LastTick(ctx, t.Name()); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("LastTick returned %v", err)
	}
	if _, err := l.RecordTick(ctx, t.Name(), 1); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("RecordTick returned %v", err)
	}
	l.backend.work.Wait() // both requests have their answers
}
