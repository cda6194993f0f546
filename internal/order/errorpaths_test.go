package order

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestLostRaise: of two instances that saw the same row of the ledger, one raises
// the generation. The other neither uses its own nor loads it.
func TestLostRaise(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i, other := s.open(t, settings{strategy: "lua"}), s.open(t, settings{strategy: "lua"})
		seen, err := i.ledger.LedgerRow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		generation := i.generations.current()
		if err := other.generations.raise(t.Context(), seen, generation+1); err != nil {
			t.Fatal(err)
		}
		for _, next := range []stock.Generation{generation + 1, generation + 2} {
			if err := i.generations.raise(t.Context(), seen, next); !errors.Is(err, errRowChanged) {
				t.Errorf("raising to %d: %v", next, err)
			}
		}
		if now := i.generations.current(); now != generation {
			t.Errorf("uses generation %d, though it did not raise it", now)
		}
		if row, err := i.ledger.LedgerRow(t.Context()); err != nil || row.Generation != generation+1 {
			t.Errorf("the ledger's row is %+v, %v", row, err)
		}
	})
}

// TestLanesEnd: a lane that has ended leaves nothing behind.
func TestLanesEnd(t *testing.T) {
	var ls lanes
	for range 2 * maxLanes {
		own := &lane{skus: []stock.SKU{"a", "b"}}
		if !ls.enter(own) {
			t.Fatal("there is no room for a lane")
		}
		free := ls.admit([]*recording{recordingOf("a"), recordingOf("b", "c"), recordingOf("c")})
		if len(free) != 1 || ls.parked != 2 {
			t.Errorf("%d may pass, %d wait", len(free), ls.parked)
		}
		if freed := ls.narrow(own, []string{"a"}); len(freed) != 1 || ls.parked != 1 {
			t.Errorf("%d need not wait any more, %d wait", len(freed), ls.parked)
		}
		if freed := ls.end(own); len(freed) != 1 || ls.parked != 0 || ls.open != 0 || len(ls.of) != 0 {
			t.Errorf("%d need not wait any more; left behind: %d waiting, %d lanes, %d SKUs", len(freed), ls.parked, ls.open, len(ls.of))
		}
		if ls.enter(own) {
			t.Error("a lane that had ended was opened")
		}
	}
}

// TestVanishedDuplicate: a void order that the ledger refuses as a duplicate, and
// then does not have, proves nothing.
func TestVanishedDuplicate(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.Postgres(t))
	i := s.open(t, settings{strategy: "lua", takeDeadline: deadline})
	sku := fresh("vanished")
	lay(t, i, sku, 1)
	for _, statement := range []string{
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'unique_violation'; END $$`,
		`CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.status = 'void') EXECUTE FUNCTION refuse()`,
	} {
		if err := s.sql.DB().Exec(statement).Error; err != nil {
			t.Fatal(err)
		}
	}
	d := taken(t, i, sku)
	if o := i.ledger.Resolve(t.Context(), d); o.kind != unknown {
		t.Errorf("resolved as %+v", o)
	}
	if err := i.Sweep(t.Context()); err == nil {
		t.Error("the sweep says nothing")
	}
	if levels, err := i.gate.Level(t.Context(), sku); err != nil || levels[0].InFlight != 1 {
		t.Errorf("%+v, %v", levels, err)
	}
}

// TestShrinkUnheard: a shrink whose COMMIT was not heard of is resolved at once.
func TestShrinkUnheard(t *testing.T) {
	t.Parallel()
	for _, d := range servers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			dbURL := d.url(t)
			s := newShop(t, dbURL)
			w, wireURL := newWire(t, dbURL)
			i := s.open(t, settings{strategy: "lua", sql: openSQL(t, wireURL)})
			defer i.Close()
			sku := fresh("unheard")
			lay(t, i, sku, 5)
			fault := w.lose()
			if _, err := i.shrink(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: 2}, 3); err != nil {
				t.Error(err)
			}
			wait(t, "the COMMIT", fault.caught)
			s.settled(t, i.gate, sku)
			s.atRest(t, i.gate, sku, 0)
			if b := s.books(t, sku); b.total != 2 {
				t.Errorf("%+v", b)
			}
		})
	}
}

// fragile is a cutter that fails for groups, and for one SKU.
type fragile struct {
	stock.Cutter
	bad stock.SKU
}

func (c fragile) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	switch {
	case len(ds) > 1:
		return nil, gorm.ErrInvalidField // a fault of one order's
	case ds[0].Lines[0].SKU == c.bad:
		return nil, errBad // and of nobody's
	}
	return c.Cutter.Cut(tx, g, ds)
}

// TestDividedGroup: where the first half of a group finds the database away, the
// second is tried.
func TestDividedGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		bad, good := fresh("bad"), fresh("good")
		i := s.open(t, settings{strategy: "for-update", change: func(built *stock.Strategy) {
			built.Cutter = fragile{built.Cutter, bad}
		}})
		lay(t, i, bad, 5)
		lay(t, i, good, 5)
		rs := []*recording{recordingOf(bad), recordingOf(good), recordingOf(bad), recordingOf(good)}
		i.ledger.record(slices.Clone(rs), new(lane))
		for n, r := range rs {
			want := []outcomeKind{refused, committed}[n%2]
			if r.outcome.kind != want {
				t.Errorf("order %d: %+v", n+1, r.outcome)
			}
		}
		s.atRest(t, nil, bad, 0)
		s.atRest(t, nil, good, 2)
	})
}

// unfilled is a gate that cannot be filled.
type unfilled struct{ stock.Gate }

func (unfilled) Fill(context.Context, stock.SKU, int64, int64) error { return errBad }

// TestFillFails: a sweep that cannot fill a count says so.
func TestFillFails(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	i := s.open(t, settings{strategy: "lua", change: func(built *stock.Strategy) { built.Gate = unfilled{built.Gate} }})
	sku := fresh("unfilled")
	if _, _, err := i.setRow(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: 1}); err != nil {
		t.Fatal(err)
	}
	if err := i.Sweep(t.Context()); !errors.Is(err, errBad) {
		t.Errorf("the sweep said %v", err)
	}
	mustRefuse(t, i, ask(sku), ErrBusy)
}

// TestRecoveriesAreCounted: a take is counted as recovered when it is, and not
// for every try.
func TestRecoveriesAreCounted(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	stuck := fresh("stuck")
	i := s.openStuck(t, stuck)
	registry := prometheus.NewRegistry()
	i.metrics = NewMetrics(registry)
	lay(t, i, stuck, 1)
	taken(t, i, stuck)
	for range 3 {
		if err := i.Sweep(t.Context()); !errors.Is(err, errBad) {
			t.Errorf("the sweep said %v", err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "holdfast_recoveries_total" {
			t.Errorf("counted: %v", family)
		}
	}
}

// TestIdleInstance: an instance that nobody asks for anything notices that Redis
// has lost its scripts, and notes the generation that it raises.
func TestIdleInstance(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	s := newShopOn(t, testenv.SQLite(t), "redis://"+redis.Addr())
	i := s.open(t, settings{strategy: "lua"})
	noted := func() {
		t.Helper()
		mark, err := i.gate.Mark(t.Context())
		if generation := i.generations.current(); err != nil || mark.Generation != generation {
			t.Errorf("the mark is %+v, %v; the generation %d", mark, err, generation)
		}
	}
	noted()
	generation := i.generations.current()
	if err := s.redis.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := i.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if now := i.generations.current(); now != generation+1 {
		t.Errorf("generation %d became %d", generation, now)
	}
	if loaded, err := i.gate.Loaded(t.Context()); !loaded || err != nil {
		t.Errorf("loaded: %v, %v", loaded, err)
	}
	noted()
}
