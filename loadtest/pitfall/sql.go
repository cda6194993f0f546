package pitfall

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// rowWait bounds the wait for a row lock, in whole seconds. It is the minimum of MariaDB.
const rowWait = 1

// rows returns the pitfalls of rows in a database.
func rows() []Pitfall {
	return []Pitfall{
		{
			Name: "sql-lost-update", Title: "SELECT, check, UPDATE to the computed value", TitleChinese: "SELECT，检查，再 UPDATE 成算好的值",
			Versions: []Version{
				{Title: "both transactions read 1 and write 0", TitleChinese: "两个事务都读到 1，都写成 0", Flawed: true, Needs: MariaDB, Run: lostUpdate},
				{Title: "UPDATE … WHERE available >= 1 (strategy conditional)", TitleChinese: "UPDATE … WHERE available >= 1（策略 conditional）", Needs: MariaDB, Run: conditionalUpdate},
			},
		},
		{
			Name: "for-update-unindexed", Title: "FOR UPDATE on a column without an index", TitleChinese: "FOR UPDATE 的条件列没有索引",
			Versions: []Version{
				{Title: "every row is locked, also of other SKUs", TitleChinese: "所有行都被锁住，其他 SKU 也不例外", Flawed: true, Needs: MariaDB, Run: lockOther(false)},
				{Title: "an index: only the row is locked", TitleChinese: "有索引：只锁这一行", Needs: MariaDB, Run: lockOther(true)},
			},
		},
		{
			Name: "gap-lock", Title: "FOR UPDATE of a missing row under REPEATABLE READ", TitleChinese: "REPEATABLE READ 下对不存在的行 FOR UPDATE（间隙锁）",
			Versions: []Version{
				{Title: "REPEATABLE READ locks the gap between rows", TitleChinese: "REPEATABLE READ 锁住行之间的间隙", Flawed: true, Needs: MariaDB, Run: insertIntoGap(repeatableRead)},
				{Title: "READ COMMITTED locks no gaps", TitleChinese: "READ COMMITTED 不锁间隙", Needs: MariaDB, Run: insertIntoGap(readCommitted)},
			},
		},
		{
			Name: "optimistic-no-retry", Title: "A version column without a retry", TitleChinese: "乐观锁冲突后不重试",
			Versions: []Version{
				{Title: "an order that loses the race fails", TitleChinese: "竞争失败的订单直接失败", Flawed: true, Needs: MariaDB, Run: optimistic(false)},
				{Title: "an order that loses the race reads again (strategy optimistic)", TitleChinese: "竞争失败的订单重新读取再试（策略 optimistic）", Needs: MariaDB, Run: optimistic(true)},
			},
		},
	}
}

// databaseURL returns the URL of a database of MariaDB or MySQL: the named one, or a new one.
func (s *Stage) databaseURL() string {
	if url := s.servers[MariaDB]; url != "" {
		return url
	}
	return testenv.MariaDB(s)
}

func (s *Stage) database(ctx context.Context) *sql.DB { return s.openDatabase(ctx, s.databaseURL()) }

func (s *Stage) openDatabase(ctx context.Context, url string) *sql.DB {
	opened, err := store.OpenSQL(ctx, url)
	s.check(err)
	s.Cleanup(func() { _ = opened.Close() })
	db, err := opened.DB().DB()
	s.check(err)
	return db
}

// stockTable creates a table of SKUs with units available and a version, and returns
// its name. The SKU has an index if indexed is true.
func (s *Stage) stockTable(ctx context.Context, db *sql.DB, indexed bool) string {
	table, key := s.key("stock"), ""
	if indexed {
		key = ", UNIQUE KEY (sku)"
	}
	s.createTable(ctx, db, table, "id INT PRIMARY KEY, sku INT NOT NULL, available INT NOT NULL, version INT NOT NULL"+key)
	s.run(ctx, db, "INSERT INTO "+table+" VALUES (1, 10001, 1, 1), (2, 10002, 1, 1), (3, 10010, 1, 1)")
	return table
}

// createTable creates a table for this run.
func (s *Stage) createTable(ctx context.Context, db *sql.DB, table, columns string) {
	s.run(ctx, db, "CREATE TABLE "+table+" ("+columns+")")
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = db.ExecContext(ctx, "DROP TABLE "+table) // if it fails, a table with a few rows stays
	})
}

// run runs a statement that is not part of the experiment.
func (s *Stage) run(ctx context.Context, db *sql.DB, statement string) {
	_, err := db.ExecContext(ctx, statement)
	s.check(err)
}

// actorConn is a connection of an actor. The timeline shows its statements and their
// answers.
type actorConn struct {
	*sql.Conn
	stage *Stage
	actor string
}

// conn returns a connection with this isolation level.
func (s *Stage) conn(ctx context.Context, actor string, db *sql.DB, level string) actorConn {
	conn, err := db.Conn(ctx)
	s.check(err)
	s.Cleanup(func() { // a rollback releases the row locks before the clean-up statements
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		_ = conn.Close()
	})
	for _, statement := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL " + level, fmt.Sprintf("SET SESSION innodb_lock_wait_timeout = %d", rowWait)} {
		_, err := conn.ExecContext(ctx, statement)
		s.check(err)
	}
	// MySQL does not have this variable and returns an error.
	_, _ = conn.ExecContext(ctx, "SET SESSION idle_transaction_timeout = 0")
	return actorConn{conn, s, actor}
}

const (
	readCommitted  = "READ COMMITTED"
	repeatableRead = "REPEATABLE READ"
)

// try runs a statement and returns the number of rows that it found.
func (c actorConn) try(ctx context.Context, statement string) (rows int64, err error) {
	result, err := c.ExecContext(ctx, statement)
	if err == nil {
		rows, err = result.RowsAffected()
	}
	word, _, _ := strings.Cut(statement, " ")
	switch {
	case err != nil:
		c.stage.at(c.actor, "%s → %s", statement, sqlError(err))
	case word == "UPDATE":
		c.stage.at(c.actor, "%s → rows: %d", statement, rows)
	default:
		c.stage.at(c.actor, "%s", statement)
	}
	return rows, err
}

// do runs a statement that must succeed.
func (c actorConn) do(ctx context.Context, statement string) (rows int64) {
	rows, err := c.try(ctx, statement)
	c.stage.check(err)
	return rows
}

// number runs a SELECT of one number. Without a row it returns 0.
func (c actorConn) number(ctx context.Context, statement string) (number int, err error) {
	err = c.QueryRowContext(ctx, statement).Scan(&number)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		c.stage.at(c.actor, "%s → no row", statement)
		err = nil
	case err != nil:
		c.stage.at(c.actor, "%s → %s", statement, sqlError(err))
	default:
		c.stage.at(c.actor, "%s → %d", statement, number)
	}
	return number, err
}

// sqlError shortens the errors that the experiments expect.
func sqlError(err error) string {
	switch {
	case sqltx.IsLockTimeout(err):
		return "error 1205: lock wait timeout"
	case sqltx.IsDuplicate(err):
		return "error 1062: duplicate entry"
	default:
		return err.Error()
	}
}

// selectUnits returns the statement that reads the units available.
func selectUnits(table string, sku int) string {
	return fmt.Sprintf("SELECT available FROM %s WHERE sku = %d", table, sku)
}

func lostUpdate(ctx context.Context, s *Stage) Damage {
	db := s.database(ctx)
	table := s.stockTable(ctx, db, true)
	a, b := s.conn(ctx, "A", db, readCommitted), s.conn(ctx, "B", db, readCommitted)
	sold := 0
	orders := []actorConn{a, b}
	seen := make([]int, len(orders))
	for i, c := range orders {
		c.do(ctx, "BEGIN")
		var err error
		seen[i], err = c.number(ctx, selectUnits(table, 10001))
		s.check(err)
	}
	for i, c := range orders {
		if seen[i] < 1 {
			continue
		}
		c.do(ctx, fmt.Sprintf("UPDATE %s SET available = %d WHERE sku = 10001", table, seen[i]-1))
		c.do(ctx, "COMMIT")
		s.at(c.actor, "sells a unit")
		sold++
	}
	return sale(sold, 1)
}

func conditionalUpdate(ctx context.Context, s *Stage) Damage {
	db := s.database(ctx)
	table := s.stockTable(ctx, db, true)
	sold := 0
	for _, c := range []actorConn{s.conn(ctx, "A", db, readCommitted), s.conn(ctx, "B", db, readCommitted)} {
		c.do(ctx, "BEGIN")
		if c.do(ctx, fmt.Sprintf("UPDATE %s SET available = available - 1 WHERE sku = 10001 AND available >= 1", table)) == 0 {
			c.do(ctx, "ROLLBACK")
			s.at(c.actor, "refuses the order: sold out")
			continue
		}
		c.do(ctx, "COMMIT")
		s.at(c.actor, "sells a unit")
		sold++
	}
	return sale(sold, 1)
}

// lockOther makes A lock one SKU, and B another.
func lockOther(index bool) run {
	return func(ctx context.Context, s *Stage) Damage {
		db := s.database(ctx)
		table := s.stockTable(ctx, db, index)
		a, b := s.conn(ctx, "A", db, repeatableRead), s.conn(ctx, "B", db, repeatableRead)
		s.at("A", "%s; an index on sku: %v", repeatableRead, index)
		a.do(ctx, "BEGIN")
		_, err := a.number(ctx, selectUnits(table, 10001)+" FOR UPDATE")
		s.check(err)
		b.do(ctx, "BEGIN")
		start := time.Now()
		if _, err := b.number(ctx, selectUnits(table, 10002)+" FOR UPDATE"); err != nil {
			return lost(time.Since(start), "B waited for a lock on another SKU, and its order failed")
		}
		return Damage{}
	}
}

// insertIntoGap makes A lock a SKU that does not exist, and B create another one near it.
func insertIntoGap(level string) run {
	return func(ctx context.Context, s *Stage) Damage {
		db := s.database(ctx)
		table := s.stockTable(ctx, db, true)
		a, b := s.conn(ctx, "A", db, level), s.conn(ctx, "B", db, level)
		s.at("A", "%s; the SKUs are 10001, 10002 and 10010", level)
		a.do(ctx, "BEGIN")
		_, err := a.number(ctx, selectUnits(table, 10005)+" FOR UPDATE")
		s.check(err)
		b.do(ctx, "BEGIN")
		start := time.Now()
		if _, err := b.try(ctx, "INSERT INTO "+table+" VALUES (4, 10007, 1, 1)"); err != nil {
			return lost(time.Since(start), "B waited for a lock on a row that does not exist, and failed")
		}
		return Damage{}
	}
}

// optimistic makes three orders read the same version of a row with three units, and then write.
func optimistic(retry bool) run {
	return func(ctx context.Context, s *Stage) Damage {
		db := s.database(ctx)
		table := s.stockTable(ctx, db, true)
		s.run(ctx, db, "UPDATE "+table+" SET available = 3 WHERE sku = 10001")
		orders := []actorConn{s.conn(ctx, "A", db, readCommitted), s.conn(ctx, "B", db, readCommitted), s.conn(ctx, "C", db, readCommitted)}
		read := func(c actorConn) int {
			version, err := c.number(ctx, "SELECT version FROM "+table+" WHERE sku = 10001")
			s.check(err)
			return version
		}
		cut := func(c actorConn, version int) bool {
			return c.do(ctx, fmt.Sprintf("UPDATE %s SET available = available - 1, version = %d WHERE sku = 10001 AND version = %d", table, version+1, version)) == 1
		}
		versions := make([]int, len(orders))
		for i, c := range orders {
			versions[i] = read(c)
		}
		failed := 0
		for i, c := range orders {
			done := cut(c, versions[i])
			if !done && retry {
				s.at(c.actor, "has lost the race, and reads again")
				done = cut(c, read(c))
			}
			if !done {
				s.at(c.actor, "has lost the race: the order fails")
				failed++
			}
		}
		return units(failed, "left that the failed orders could have had")
	}
}
