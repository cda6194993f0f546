package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestRowOfALaterGeneration: a stock row, or a count at the gate, of a later
// generation than the ledger's own is sold all the same: the ledger was restored
// from a backup, and nothing else tells.
func TestRowOfALaterGeneration(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, name := range []string{"merged", "lua", "segment"} {
			t.Run(name, func(t *testing.T) {
				var last *instance
				for range 3 {
					last = s.open(t, settings{strategy: name, noGuard: true, segments: 2})
					last.StoreChanged() // a generation each
				}
				sku := fresh("later")
				lay(t, last, sku, 3)
				mustPlace(t, last, ask(sku))
				s.settled(t, last.gate, sku)
				generation := last.generations.current()
				last.Close()
				// Restored; the instance that sold meanwhile dies before it looks.
				if err := s.sql.DB().Exec("UPDATE ledger SET generation = ?", generation-2).Error; err != nil {
					t.Fatal(err)
				}
				if err := s.redis.Del(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:generation").Err(); err != nil {
					t.Fatal(err)
				}
				next := s.open(t, settings{strategy: name, noGuard: true, segments: 2})
				for n := range 2 {
					if _, _, err := next.Place(t.Context(), ask(sku)); err != nil {
						t.Errorf("order %d: %v", n+1, err)
					}
				}
				mustRefuse(t, next, ask(sku), stock.ErrSoldOut)
				s.settled(t, next.gate, sku)
				s.atRest(t, next.gate, sku, 3)
			})
		}
	})
}

// TestUnreadableMark: an instance starts, and is ready, though Redis has nonsense
// for a mark.
func TestUnreadableMark(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	key := "holdfast:{" + s.ledgerID.String() + "}:generation"
	for _, mark := range []string{"", "nonsense", "1 0", "1 0 x"} {
		t.Run(mark, func(t *testing.T) {
			i := s.open(t, settings{strategy: "lua"})
			if err := s.redis.Set(t.Context(), key, mark, 0).Err(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := i.Ready(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if err := s.redis.Set(t.Context(), key, mark, 0).Err(); err != nil {
				t.Fatal(err)
			}
			s.open(t, settings{strategy: "lua"})
		})
	}
	i := s.open(t, settings{strategy: "lua"})
	if err := errors.Join(s.redis.Del(t.Context(), key).Err(), s.redis.RPush(t.Context(), key, "a list").Err()); err != nil {
		t.Fatal(err)
	}
	if err := i.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUnreadableRecord: a record that makes no sense keeps no other take from its
// recovery.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	i := s.open(t, settings{strategy: "lua", takeDeadline: deadline})
	sku, nowhere := fresh("record"), fresh("nowhere")
	lay(t, i, sku, 5)
	row, err := i.ledger.Row(t.Context(), sku)
	if err != nil {
		t.Fatal(err)
	}
	flight := "holdfast:{" + s.ledgerID.String() + "}:flight"
	for _, field := range []string{string(sku) + " x", string(nowhere) + " x", "x"} {
		for _, record := range []string{"nonsense", fmt.Sprintf("x 1 %d 1", row.Epoch), fmt.Sprintf("%s 1 %d 1 b %s=1", uuid.New(), row.Epoch, sku)} {
			t.Run(field+"/"+record, func(t *testing.T) {
				for n := range 20 { // one of them is listed before the other record
					if err := s.redis.HSet(t.Context(), flight, field+strconv.Itoa(n), record).Err(); err != nil {
						t.Fatal(err)
					}
				}
				taken(t, i, sku)
				for range 2 {
					_ = i.Sweep(t.Context()) // it may complain
				}
				levels, err := i.gate.Level(t.Context(), sku)
				if err != nil || levels[0].InFlight != 0 || levels[0].Available != 5 {
					t.Errorf("%+v, %v", levels, err)
				}
				if err := s.redis.Del(t.Context(), flight).Err(); err != nil {
					t.Fatal(err)
				}
				if levels[0].InFlight != 0 {
					s.forget(t)
					_ = i.Sweep(t.Context())
				}
			})
		}
	}
}

// stuckGate does not give one SKU's units back.
type stuckGate struct {
	stock.Gate
	stuck stock.SKU
}

func (g *stuckGate) Give(ctx context.Context, d stock.Deduction) error {
	if slices.ContainsFunc(d.Lines, func(line stock.Line) bool { return line.SKU == g.stuck }) {
		return errBad
	}
	return g.Gate.Give(ctx, d)
}

func (s *shop) openStuck(t *testing.T, stuck stock.SKU) *instance {
	t.Helper()
	return s.open(t, settings{strategy: "lua", takeDeadline: deadline, change: func(built *stock.Strategy) {
		built.Gate = &stuckGate{built.Gate, stuck}
	}})
}

// TestManyStuckTakes: takes that cannot be ended, however many they are, keep no
// other SKU's from their recovery.
func TestManyStuckTakes(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	stuck, other := fresh("stuck"), fresh("other")
	i := s.openStuck(t, stuck)
	lay(t, i, stuck, 5*recoverAtOnce)
	lay(t, i, other, 5)
	for range 4*recoverAtOnce + 1 {
		taken(t, i, stuck)
	}
	for range 5 { // one may be listed among the first by chance
		taken(t, i, other)
	}
	if err := i.Sweep(t.Context()); !errors.Is(err, errBad) {
		t.Errorf("the sweep said %v", err)
	}
	s.atRest(t, i.gate, other, 0)
}

// TestOneStuckTake: an open take that cannot be ended keeps no other from its end.
func TestOneStuckTake(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	stuck, other := fresh("stuck"), fresh("other")
	i := s.openStuck(t, stuck)
	i.takeDeadline = deadlineOfNobody
	lay(t, i, stuck, 1)
	lay(t, i, other, 1)
	i.leaveOpen(openTake{taken(t, i, stuck), false})
	i.leaveOpen(openTake{taken(t, i, other), false})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { i.endOpenTakes(ctx) })
	eventually(t, "the other take is ended", func() bool {
		levels, err := i.gate.Level(t.Context(), other)
		return err == nil && levels[0].InFlight == 0
	})
}

const deadlineOfNobody = 1 << 62

// TestManyLinesAfterAFlush: the first order of many SKUs is placed after Redis
// has lost them all, and after another strategy took the stock over.
func TestManyLinesAfterAFlush(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	i := s.open(t, settings{strategy: "lua"})
	var lines []stock.Line
	for n := range stock.MaxLines {
		sku := fresh(fmt.Sprintf("line-%02d", n))
		lay(t, i, sku, 5)
		lines = append(lines, stock.Line{SKU: sku, Quantity: 1})
	}
	s.forget(t)
	mustPlace(t, i, asking(lines...))
	mustPlace(t, s.open(t, settings{strategy: "merged"}), asking(lines...))
	mustPlace(t, s.open(t, settings{strategy: "segment"}), asking(lines...))
}

// TestRestoredToAnotherLayout: instances go on when their ledger is restored from
// a backup of when another layout had the stock.
func TestRestoredToAnotherLayout(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, pair := range [][2]string{{"merged", "lua"}, {"lua", "merged"}, {"lua", "segment"}} {
			t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
				old := s.open(t, settings{strategy: pair[0]})
				row, err := old.ledger.LedgerRow(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				sku := fresh("restored")
				lay(t, old, sku, 5)
				i := s.open(t, settings{strategy: pair[1]})
				if err := old.Ready(t.Context()); !errors.Is(err, ErrSuperseded) {
					t.Fatal(err)
				}
				if err := s.sql.DB().Exec("UPDATE ledger SET generation = ?, layout = ?, beat = ?", row.Generation, row.Layout, row.Beat).Error; err != nil {
					t.Fatal(err)
				}
				for range 3 {
					_, _ = i.Ready(t.Context()), old.Ready(t.Context())
				}
				if err := i.Ready(t.Context()); err != nil {
					t.Errorf("the instance that had the stock: %v", err)
				}
				if err := old.Ready(t.Context()); !errors.Is(err, ErrSuperseded) {
					t.Errorf("the superseded instance: %v", err)
				}
				mustPlace(t, i, ask(sku))
				s.settled(t, i.gate, sku)
				s.atRest(t, i.gate, sku, 1)
				old.Close()
				i.Close()
			})
		}
	})
}

// TestDistinct: setting twins apart loses none of the group.
func TestDistinct(t *testing.T) {
	a, b := recordingOf("a"), recordingOf("b")
	twin := recordingOf("a")
	twin.entry.ID = a.entry.ID
	all := []*recording{a, twin, b}
	first, others := distinct(all)
	if !slices.Equal(first, []*recording{a, b}) || !slices.Equal(others, []*recording{twin}) {
		t.Errorf("%v and %v", first, others)
	}
	if !slices.Equal(all, []*recording{a, twin, b}) {
		t.Error("the group was overwritten")
	}
}

// afterCommit is a database of SQLite that calls committed after each commit.
func afterCommit(t *testing.T, db *gorm.DB, committed func()) *gorm.DB {
	t.Helper()
	db = db.Session(&gorm.Session{NewDB: true, Context: t.Context()})
	db.Statement.ConnPool = hookedPool{db.Statement.ConnPool, committed}
	return db
}

type hookedPool struct {
	gorm.ConnPool
	committed func()
}

func (p hookedPool) BeginTx(ctx context.Context, options *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := p.ConnPool.(gorm.ConnPoolBeginner).BeginTx(ctx, options)
	return &hookedTx{tx, p.committed}, err
}

type hookedTx struct {
	gorm.ConnPool
	committed func()
}

func (tx *hookedTx) Commit() error {
	err := tx.ConnPool.(gorm.TxCommitter).Commit()
	tx.committed()
	return err
}

func (tx *hookedTx) Rollback() error { return tx.ConnPool.(gorm.TxCommitter).Rollback() }

// TestRaiseDuringACheck: a generation that is raised while the ledger is being
// looked at is no sign of an older ledger.
func TestRaiseDuringACheck(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	for _, name := range []string{"lua", "merged"} {
		i := s.open(t, settings{strategy: name})
		generation := i.generations.current()
		sound := i.ledger.db
		i.ledger.db = afterCommit(t, sound, func() {
			i.ledger.db = sound
			i.StoreChanged()
			if err := i.generations.usable(t.Context()); err != nil {
				t.Error(err)
			}
		})
		if err := i.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		if now := i.generations.current(); now != generation+1 {
			t.Errorf("%s: generation %d became %d", name, generation, now)
		}
	}
}
