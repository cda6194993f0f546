package pitfall

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// distributed returns the pitfall of a transaction over two databases.
func distributed() []Pitfall {
	return []Pitfall{{
		Name: "two-databases", Title: "Two databases written without write isolation", TitleChinese: "跨两个数据库写入，没有写隔离",
		Versions: []Version{
			{Title: "each database commits at once; a rollback restores what was there", TitleChinese: "各库立即提交，回滚时恢复前镜像", Flawed: true, Run: restoreImage},
			{Title: "a global lock until the end (what Seata's AT mode does)", TitleChinese: "全局锁一直持有到结束（Seata AT 模式的做法）", Run: restoreImageLocked},
			{Title: "reserve, then confirm or cancel", TitleChinese: "预留，再确认或取消（TCC）", Run: reserve},
		},
	}}
}

// initialUnits is the stock of the two-database experiments.
const initialUnits = 10

// books are two databases: one with the stock, the other with the buyers' accounts. Buyer A has no
// money.
type books struct {
	stage           *Stage
	stock, accounts *sql.DB
	sold            int
}

func (s *Stage) openBooks(ctx context.Context) *books {
	b := &books{stage: s, stock: s.openDatabase(ctx, testenv.SQLite(s)), accounts: s.openDatabase(ctx, testenv.SQLite(s))}
	s.run(ctx, b.stock, fmt.Sprintf("CREATE TABLE stock AS SELECT %d AS available, 0 AS reserved", initialUnits))
	s.run(ctx, b.accounts, "CREATE TABLE account AS SELECT 'A' AS buyer, 0 AS balance UNION SELECT 'B', 1")
	return b
}

// write runs a statement on the database of the stock. It commits at once.
func (b *books) write(ctx context.Context, actor, statement string) {
	b.stage.run(ctx, b.stock, statement)
	b.stage.at(actor, "stock db: %s", statement)
}

// available reads the units available.
func (b *books) available(ctx context.Context) (units int) {
	b.stage.check(b.stock.QueryRowContext(ctx, "SELECT available FROM stock").Scan(&units))
	return units
}

// cut sells a unit in the database of the stock. It returns the units available before, which a
// rollback restores.
func (b *books) cut(ctx context.Context, actor string) (before int) {
	before = b.available(ctx)
	b.stage.at(actor, "stock db: reads %d, keeps it for a rollback", before)
	b.write(ctx, actor, fmt.Sprintf("UPDATE stock SET available = %d", before-1))
	return before
}

// pay takes the money from the buyer's account. It returns false if there is too little.
func (b *books) pay(ctx context.Context, actor string) bool {
	const statement = "UPDATE account SET balance = balance - 1 WHERE buyer = '%s' AND balance >= 1"
	result, err := b.accounts.ExecContext(ctx, fmt.Sprintf(statement, actor))
	b.stage.check(err)
	rows, err := result.RowsAffected()
	b.stage.check(err)
	if rows == 0 {
		b.stage.at(actor, "accounts db: too little money: the transaction must roll back")
		return false
	}
	b.stage.at(actor, "accounts db: pays; the transaction is complete")
	b.sold++
	return true
}

// restore writes the number of units that a transaction has saved for a rollback.
func (b *books) restore(ctx context.Context, actor string, before int) {
	b.write(ctx, actor, fmt.Sprintf("UPDATE stock SET available = %d", before))
}

// damage returns the units that are both sold and still available, or neither sold nor available.
func (b *books) damage(ctx context.Context) Damage {
	left := b.available(ctx)
	b.stage.at("books", "%d sold and %d available of %d", b.sold, left, initialUnits)
	if lost := initialUnits - b.sold - left; lost > 0 {
		return unsold(lost, "neither sold nor available")
	}
	return units(b.sold+left-initialUnits, "sold and still available")
}

func restoreImage(ctx context.Context, s *Stage) Damage {
	b := s.openBooks(ctx)
	beforeA := b.cut(ctx, "A")
	beforeB := b.cut(ctx, "B")
	if !b.pay(ctx, "B") {
		b.restore(ctx, "B", beforeB)
	}
	if !b.pay(ctx, "A") {
		b.restore(ctx, "A", beforeA)
	}
	return b.damage(ctx)
}

func restoreImageLocked(ctx context.Context, s *Stage) Damage {
	b, name := s.openBooks(ctx), s.key("global:stock")
	locks := lock.NewLocal()
	lockA, lockB := s.locker("A", locks), s.locker("B", locks)
	leaseA := lockA.lock(ctx, name)
	beforeA := b.cut(ctx, "A")
	lockB.mustBeHeld(ctx, name)
	if !b.pay(ctx, "A") {
		b.restore(ctx, "A", beforeA)
	}
	lockA.unlock(ctx, leaseA)
	leaseB := lockB.lock(ctx, name)
	beforeB := b.cut(ctx, "B")
	if !b.pay(ctx, "B") {
		b.restore(ctx, "B", beforeB)
	}
	lockB.unlock(ctx, leaseB)
	return b.damage(ctx)
}

func reserve(ctx context.Context, s *Stage) Damage {
	const (
		reserve = "UPDATE stock SET available = available - 1, reserved = reserved + 1"
		confirm = "UPDATE stock SET reserved = reserved - 1"
		cancel  = "UPDATE stock SET available = available + 1, reserved = reserved - 1"
	)
	b := s.openBooks(ctx)
	b.write(ctx, "A", reserve)
	b.write(ctx, "B", reserve)
	for _, actor := range []string{"B", "A"} {
		if b.pay(ctx, actor) {
			b.write(ctx, actor, confirm)
		} else {
			b.write(ctx, actor, cancel)
		}
	}
	return b.damage(ctx)
}
