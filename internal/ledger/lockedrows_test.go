package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestLockedRows checks that lockedRows names the locked rows, does not wait for
// them, and leaves nothing locked.
func TestLockedRows(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, lockedRows)
}

func lockedRows(t *testing.T, d *database) {
	db, l := d.sql.Ledger(), d.open(t, cutter.Merged())
	for _, sku := range []stock.SKU{"a", "b", "c"} {
		lay(t, l, sku, 10)
	}
	if db.Dialect() == sqltx.SQLite {
		if locked, err := l.lockedRows(t.Context(), []stock.SKU{"a"}); err != nil || locked != nil {
			t.Errorf("locked %q, %v", locked, err)
		}
		return
	}
	holder := begin(t, db)
	exec(t, holder, "UPDATE stock SET available = 1 WHERE sku = 'b'")
	locked, err := l.lockedRows(t.Context(), []stock.SKU{"a", "b", "missing"})
	if err != nil || !slices.Equal(locked, []stock.SKU{"b"}) {
		t.Errorf("locked %q, %v, want b", locked, err)
	}
	holder.Rollback()
	if locked, err := l.lockedRows(t.Context(), []stock.SKU{"a", "b"}); err != nil || len(locked) > 0 {
		t.Errorf("locked %q, %v, want none", locked, err)
	}
	if _, err := db.Exec(t.Context(), "UPDATE stock SET available = 1 WHERE sku IN ('a', 'b')"); err != nil {
		t.Errorf("a row is still locked: %v", err)
	}
}

// TestLockWaits checks that a group waits for locked rows a bounded number of times if the database
// does not say which rows are locked.
func TestLockWaits(t *testing.T) {
	t.Parallel()
	s, waits := openTemplate(t).copy(t), 0
	s.l.cutter = cuttertest.WithCut(cutter.ForUpdate(), func(ctx context.Context, tx *sqltx.Tx, _ []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
		if waits++; waits <= 2*maxLockWaits {
			return nil, &mysql.MySQLError{Number: 1205} // the lock wait timeout
		}
		return cut(ctx, tx)
	})
	if _, out := s.l.Record(t.Context(), takeOf("b")); !out.Refused() || !errors.Is(out.Reason(), stock.ErrBusy) || waits != maxLockWaits {
		t.Errorf("%s after %d waits, %v", out.Kind(), waits, out.Reason())
	}
}

// lockedRow returns a ledger with the SKUs a and b through a wire, and an order of each. The stock
// row of a is locked, and sessions have a short bound for lock waits.
func (d *database) lockedRow(t *testing.T) (l *Ledger, wire *faults.Wire, placed []order.Order) {
	t.Helper()
	healthy := d.open(t, cutter.Merged())
	for _, sku := range []stock.SKU{"a", "b"} {
		lay(t, healthy, sku, 100)
		placed = append(placed, place(t, healthy, sku))
	}
	l, wire = d.throughWire(t, map[sqltx.Dialect][2]string{
		sqltx.MySQL:    {"innodb_lock_wait_timeout", "1"},
		sqltx.Postgres: {"lock_timeout", "20"},
	})
	t.Cleanup(storetest.LockRow(t, d.url, "a"))
	return l, wire, placed
}

// TestFaults_LockedRow makes each statement fail in calls that need a locked stock row. The answers
// about the row and the orders must be correct.
func TestFaults_LockedRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "PostgreSQL"), func(t *testing.T, d *database) {
		l, wire, _ := d.lockedRow(t)
		for _, kind := range []faults.Kind{faults.Refused, faults.BadValue} {
			for n, injected := 1, true; injected; n++ {
				wire.Arm(faults.Fault{Kind: kind, Nth: n})
				locked, err := l.lockedRows(t.Context(), []stock.SKU{"a", "b"})
				_, hit := wire.Disarm()
				injected = len(hit) > 0
				asked := strings.Contains(strings.Join(hit, ""), "SELECT") // not while a session or a transaction begins or ends
				if asked && err == nil || !injected && err != nil || err == nil && !slices.Contains(locked, "a") {
					t.Errorf("Locked after %q: %q, %v", hit, locked, err)
				}
			}
		}
		sold, waits := int64(1), 0
		l.metrics.retries = retryHook{l.metrics.retries, func() { waits++ }}
		// MariaDB waits 1 s for the row each time.
		for n, injected := 1, d.sql.Ledger().Dialect() == sqltx.Postgres; injected; n++ {
			rs := []*recording{recordingOf("a"), recordingOf("b"), recordingOf("a", "b")}
			repeat := repeatOf(rs[1])
			waits = 0
			wire.Arm(faults.Fault{Kind: faults.Refused, Nth: n})
			l.recordGroup(append(slices.Clone(rs), repeat), new(slowGroup))
			_, hit := wire.Disarm()
			if rs[1].outcome.Refused() && !repeat.outcome.Refused() {
				t.Errorf("after %q order 2 is refused, and its repeat was tried: %+v", hit, repeat.outcome)
			}
			if injected = len(hit) > 0; !injected && waits != maxLockWaits {
				t.Errorf("the group waited for the locked row %d times", waits)
			}
			for i, r := range rs {
				o, err := l.Order(t.Context(), r.order.ID)
				found := err == nil
				if found {
					sold++
				}
				switch out := r.outcome; {
				case found && o.Lines[0].SKU == "a", !found && !errors.Is(err, order.ErrUnknownOrder), found != (out.Committed() || i == 1 && repeat.outcome.Committed()):
					t.Errorf("order %d after %q: %+v, and the ledger has %+v, %v", i+1, hit, out, o, err)
				case !injected && found != (i == 1):
					t.Errorf("order %d without a fault: %+v", i+1, out)
				case out.Unknown() && !strings.Contains(strings.Join(hit, ""), "COMMIT"):
					t.Errorf("order %d after %q: %v", i+1, hit, out.Reason())
				case out.Refused() && !errors.Is(out.Reason(), stock.ErrBusy):
					t.Errorf("order %d after %q is refused: %v", i+1, hit, out.Reason())
				case rs[1].outcome.Refused() && fmt.Sprint(out.Reason()) != fmt.Sprint(rs[1].outcome.Reason()):
					t.Errorf("order %d after %q waited for its row although the database was unreachable for order 2: %v", i+1, hit, out.Reason())
				}
			}
		}
		d.atRest(t, "b", sold)
	})
}
