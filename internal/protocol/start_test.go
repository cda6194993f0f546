package protocol

import (
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

// TestStartTogether checks that many instances can take over the stock at the same moment.
// Instances that do not raise the generation wait until it is loaded.
func TestStartTogether(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		s.open(t, settings{strategy: "merged"}) // first, the stock belongs to another layout
		spec, _ := assembly.FindStrategy("lua")
		begin := make(chan struct{})
		var starts sync.WaitGroup
		for range 40 {
			built, closeGate := spec.Build(assembly.Backends{Redis: s.redis, LedgerID: s.ledgerID, Guard: true})
			i := s.assemble(s.sql.Ledger(), built, settings{takeDeadline: time.Minute})
			i.stop = closeGate
			t.Cleanup(i.Close)
			starts.Go(func() {
				<-begin
				if err := patiently(func() error { return i.Start(t.Context()) }); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		starts.Wait()
	})
}
