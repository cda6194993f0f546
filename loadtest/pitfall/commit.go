package pitfall

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// commits returns the pitfall of a COMMIT without an answer.
func commits() []Pitfall {
	return []Pitfall{
		{
			Name: "unknown-commit", Title: "An unknown COMMIT resolved by reading", TitleChinese: "COMMIT 结果未知，靠查询来判断",
			Versions: []Version{
				{Title: "no order is found, so its unit is sold again", TitleChinese: "查不到订单，就把它的件数再卖一次", Flawed: true, Needs: MariaDB, Run: resolveByReading},
				{Title: "resolved by writing a row with the order's ID", TitleChinese: "写入同一订单号的行来判定", Needs: MariaDB, Run: resolveByWriting},
			},
		},
	}
}

// lateCommit is a database with one unit on sale, and an order of A whose COMMIT is delayed by the
// network.
type lateCommit struct {
	stage    *Stage
	db       *sql.DB
	table    string
	wire     *testenv.Wire
	recovery actorConn
}

// commitLate places the order and gives up waiting for the answer to its COMMIT.
func (s *Stage) commitLate(ctx context.Context) *lateCommit {
	const patience = 300 * time.Millisecond
	direct := s.databaseURL()
	l := &lateCommit{stage: s, db: s.openDatabase(ctx, direct), table: s.key("orders"), wire: testenv.NewWire(s, direct)}
	s.createTable(ctx, l.db, l.table, "id INT PRIMARY KEY, buyer VARCHAR(8) NOT NULL")
	l.recovery = s.conn(ctx, "recovery", l.db, readCommitted)
	a := s.conn(ctx, "A", s.openDatabase(ctx, l.wire.Through(direct)), readCommitted)
	a.do(ctx, "BEGIN")
	a.do(ctx, fmt.Sprintf("INSERT INTO %s VALUES (1, 'A')", l.table))
	l.wire.Freeze()
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	answered := make(chan error, 1)
	go func() {
		_, err := a.ExecContext(waiting, "COMMIT")
		answered <- err
	}()
	s.await(ctx, "A has sent its COMMIT", l.wire.Holding)
	s.pause(ctx, patience)
	giveUp()
	if <-answered == nil {
		s.Fatalf("the COMMIT was answered through a frozen network")
	}
	s.at("A", "COMMIT → no answer for %v; the outcome is unknown", patience)
	return l
}

// thaw lets the COMMIT arrive.
func (l *lateCommit) thaw() {
	l.wire.Thaw()
	l.stage.at("network", "delivers A's COMMIT")
}

// orders returns the number of orders once A's order has been committed.
func (l *lateCommit) orders(ctx context.Context) (count int) {
	s := l.stage
	s.await(ctx, "A's order is committed", func() bool {
		var found int
		s.check(l.db.QueryRowContext(ctx, "SELECT COUNT(*), COUNT(CASE id WHEN 1 THEN 1 END) FROM "+l.table).Scan(&count, &found))
		return found == 1
	})
	s.at("ledger", "orders for 1 unit: %d", count)
	return count
}

func resolveByReading(ctx context.Context, s *Stage) Damage {
	l := s.commitLate(ctx)
	found, err := l.recovery.number(ctx, "SELECT COUNT(*) FROM "+l.table+" WHERE id = 1")
	s.check(err)
	if found == 0 {
		s.at("recovery", "finds no order, and gives the unit back")
		s.conn(ctx, "B", l.db, readCommitted).do(ctx, fmt.Sprintf("INSERT INTO %s VALUES (2, 'B')", l.table))
	}
	l.thaw()
	return sale(l.orders(ctx), 1)
}

func resolveByWriting(ctx context.Context, s *Stage) Damage {
	const arrival = 100 * time.Millisecond
	l := s.commitLate(ctx)
	s.at("recovery", "inserts a row with the ID of A's order; it waits for A's transaction")
	arrived := time.AfterFunc(arrival, l.thaw)
	defer arrived.Stop()
	for {
		_, err := l.recovery.try(ctx, fmt.Sprintf("INSERT INTO %s VALUES (1, 'void')", l.table))
		if err == nil {
			s.at("recovery", "the order can no longer be committed: gives the unit back")
			s.conn(ctx, "B", l.db, readCommitted).do(ctx, fmt.Sprintf("INSERT INTO %s VALUES (2, 'B')", l.table))
			break
		}
		if sqltx.IsDuplicate(err) {
			s.at("recovery", "the order is committed: its unit stays sold")
			break
		}
		if !sqltx.IsLockTimeout(err) { // the COMMIT is still under way: try again
			s.check(err)
		}
	}
	return sale(l.orders(ctx), 1)
}
