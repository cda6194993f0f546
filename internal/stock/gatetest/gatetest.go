// Package gatetest checks that a gate and its counter keep the promises of gate.Gate and
// gate.Counter. One call runs all checks:
//
//	gatetest.Run(t, gatetest.Gates{
//		Instances: []gatetest.Gate{a, b}, Empty: empty, LoseCount: loseCount,
//	})
package gatetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Gate is a gate with its counter.
type Gate interface {
	Take(ctx context.Context, d stock.Deduction) (stock.Take, error)
	Settle(ctx context.Context, takes ...stock.Take) error
	Give(ctx context.Context, t stock.Take) error
	Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error
	FillAll(ctx context.Context, fills []stock.Fill) []error
	Adjust(ctx context.Context, c stock.Change) error
	InFlight(ctx context.Context, limit int, skus ...stock.SKU) ([]stock.Take, error)
	ScanInFlight(ctx context.Context, olderThan time.Duration, cursor string) (takes []stock.Take, next string, err error)
	Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error)
}

// Gates are the gates under test and the faults of their store.
type Gates struct {
	// Instances share one store, as instances of the service do. Use one
	// instance if the gate promises nothing for several.
	Instances []Gate
	// NotOffered has the promises that these gates do not make, and the reasons.
	NotOffered map[string]string
	// Empty deletes everything that the store has of the SKU, as a flush does.
	Empty func(ctx context.Context, sku stock.SKU) error
	// LoseCount deletes only the SKU's count, and keeps what is in flight.
	LoseCount func(ctx context.Context, sku stock.SKU) error
}

// Promise is one thing that every gate promises.
type Promise struct {
	Name  string
	check func(t *trial) error
}

// Promises returns all promises. Each check uses its own SKUs, so they can run on the same gates at
// the same time.
func Promises() []Promise {
	return slices.Concat(
		takePromises, oversellPromises, givePromises, settlePromises, fillPromises, adjustPromises,
		faultPromises, inFlightPromises, levelPromises, modelPromises,
	)
}

// Find returns the promise of that name. It panics if there is none.
func Find(name string) Promise {
	for _, p := range Promises() {
		if p.Name == name {
			return p
		}
	}
	panic("no gate promises " + name)
}

// Run checks all promises that the gates make.
func Run(t *testing.T, gates Gates) {
	t.Helper()
	for _, p := range Promises() {
		if reason, ok := gates.NotOffered[p.Name]; ok {
			t.Logf("%s is not offered: %s", p.Name, reason)
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			if err := p.Check(t.Context(), gates); err != nil {
				t.Error(err)
			}
		})
	}
}

// Check checks the promise and returns the first violation. It does not fail a test, so that a test
// can prove that the check detects a broken gate.
func (p Promise) Check(ctx context.Context, gates Gates) error {
	ctx, cancel := context.WithTimeout(ctx, 5*testenv.Patience) // a check waits for several events, or makes hundreds of calls
	defer cancel()
	t := &trial{ctx: ctx, gates: gates, run: uuid.NewString()[:8]}
	if err := p.check(t); err != nil {
		return err
	}
	return t.err
}
