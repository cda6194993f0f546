package order

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// shrink is the status of the row that records an administrator's shrinking of
// stock. It has the life of an order at the gate, but is none: it is never
// shown and has no lines.
const shrink Status = "shrink"

// entry is an order as the ledger keeps it: with the take that cut its units.
type entry struct {
	Order
	takeID uuid.UUID
}

// entries reads the orders with these IDs, by ID. Absent ones are left out.
func entries(db *gorm.DB, ids []uuid.UUID) (map[uuid.UUID]*entry, error) {
	keys := make([]any, len(ids))
	for i, id := range ids {
		keys[i] = idColumn(db, id)
	}
	found, err := readOrders(db, keys)
	if err != nil {
		return nil, fmt.Errorf("reading orders: %w", err)
	}
	if len(found) == 0 {
		return found, nil
	}
	if err := readLines(db, keys, found); err != nil {
		return nil, fmt.Errorf("reading order lines: %w", err)
	}
	return found, nil
}

func readOrders(db *gorm.DB, keys []any) (map[uuid.UUID]*entry, error) {
	rows, err := db.Raw("SELECT id, take_id, buyer_id, status, strategy, created_at, expires_at FROM orders WHERE id IN ?", keys).Rows()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[uuid.UUID]*entry)
	for rows.Next() {
		var (
			e       entry
			expires *time.Time
		)
		err := rows.Scan(&e.ID, &e.takeID, &e.Buyer, &e.Status, &e.Strategy, &e.CreatedAt, &expires)
		if err != nil {
			return nil, err
		}
		e.CreatedAt = e.CreatedAt.UTC()
		if expires != nil {
			e.ExpiresAt = expires.UTC()
		}
		found[e.ID] = &e
	}
	return found, rows.Err()
}

func readLines(db *gorm.DB, keys []any, orders map[uuid.UUID]*entry) error {
	rows, err := db.Raw("SELECT order_id, sku, quantity FROM order_lines WHERE order_id IN ? ORDER BY order_id, sku", keys).Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id   uuid.UUID
			line stock.Line
		)
		if err := rows.Scan(&id, &line.SKU, &line.Quantity); err != nil {
			return err
		}
		if e, ok := orders[id]; ok { // an order that committed between the two reads is left to the next
			e.Lines = append(e.Lines, line)
		}
	}
	return rows.Err()
}

// insert writes the orders with their lines, in the order given.
func insert(ctx context.Context, tx *gorm.DB, es []entry) error {
	_, err := store.ExecAll(ctx, tx, inserts(tx, es, store.Unguarded)...)
	return err
}

// inserts are the statements that write the orders with their lines, with a
// guard in the first.
func inserts(db *gorm.DB, es []entry, guard store.Guard) []store.Statement {
	statements := []store.Statement{ordersInsert(db, es, guard)}
	if lines := countLines(es); lines > 0 {
		statements = append(statements, linesInsert(db, es, lines))
	}
	return statements
}

func countLines(es []entry) (n int) {
	for i := range es {
		n += len(es[i].Lines)
	}
	return n
}

// ordersInsert inserts the rows of the orders. The database parses each value
// of each group: IDs are cheapest as literals, and commonly no order expires.
func ordersInsert(db *gorm.DB, es []entry, guard store.Guard) store.Statement {
	if db.Name() == "postgres" { // where no guard is needed
		return ordersUnnest(es)
	}
	columns, values := "id,take_id,buyer_id,status,strategy,created_at", ",?,?,?,?)"
	expires := slices.ContainsFunc(es, func(e entry) bool { return !e.ExpiresAt.IsZero() })
	if expires {
		columns, values = columns+",expires_at", ",?,?,?,?,?)"
	}
	sql := make([]byte, 0, 100+100*len(es))
	sql = append(sql, "INSERT INTO orders ("+columns+") VALUES "...)
	args := make([]any, 0, 5*len(es))
	for i := range es {
		e := &es[i]
		if i == 0 {
			sql = append(sql, "("+guard(string(appendLiteral(nil, e.ID)))+","...)
		} else {
			sql = append(appendLiteral(append(sql, ",("...), e.ID), ',')
		}
		sql = append(appendLiteral(sql, e.takeID), values...)
		args = append(args, e.Buyer, string(e.Status), e.Strategy, e.CreatedAt)
		if expires {
			args = append(args, nullable(e.ExpiresAt))
		}
	}
	return store.Statement{SQL: string(sql), Args: args}
}

// linesInsert inserts the lines of the orders, which are n.
func linesInsert(db *gorm.DB, es []entry, n int) store.Statement {
	if db.Name() == "postgres" {
		return linesUnnest(es, n)
	}
	sql := make([]byte, 0, 100+50*n)
	sql = append(sql, "INSERT INTO order_lines (order_id,sku,quantity) VALUES "...)
	args := make([]any, 0, 2*n)
	for i := range es {
		for _, line := range es[i].Lines {
			if len(args) > 0 {
				sql = append(sql, ',')
			}
			sql = append(appendLiteral(append(sql, '('), es[i].ID), ",?,?)"...)
			args = append(args, string(line.SKU), line.Quantity)
		}
	}
	return store.Statement{SQL: string(sql), Args: args}
}

// appendLiteral writes an ID as a literal of MySQL and SQLite.
func appendLiteral(sql []byte, id uuid.UUID) []byte {
	return append(hex.AppendEncode(append(sql, "X'"...), id[:]), '\'')
}

// ordersUnnest passes columns as arrays, so that one prepared statement serves
// groups of every size.
func ordersUnnest(es []entry) store.Statement {
	var (
		ids        = make([][16]byte, len(es))
		takes      = make([][16]byte, len(es))
		buyers     = make([]string, len(es))
		statuses   = make([]string, len(es))
		strategies = make([]string, len(es))
		created    = make([]time.Time, len(es))
		expires    = make([]*time.Time, len(es))
	)
	for i := range es {
		e := &es[i]
		ids[i], takes[i], buyers[i] = e.ID, e.takeID, e.Buyer
		statuses[i], strategies[i] = string(e.Status), e.Strategy
		created[i], expires[i] = e.CreatedAt, nullable(e.ExpiresAt)
	}
	return store.Statement{Args: []any{ids, takes, buyers, statuses, strategies, created, expires}, SQL: `INSERT INTO orders
		(id, take_id, buyer_id, status, strategy, created_at, expires_at)
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[])`}
}

func linesUnnest(es []entry, n int) store.Statement {
	var (
		ids        = make([][16]byte, 0, n)
		skus       = make([]string, 0, n)
		quantities = make([]int64, 0, n)
	)
	for i := range es {
		for _, line := range es[i].Lines {
			ids = append(ids, es[i].ID)
			skus = append(skus, string(line.SKU))
			quantities = append(quantities, line.Quantity)
		}
	}
	return store.Statement{Args: []any{ids, skus, quantities}, SQL: `INSERT INTO order_lines (order_id, sku, quantity)
		SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[])`}
}

// idColumn is a UUID as the dialect's column takes it.
func idColumn(db *gorm.DB, id uuid.UUID) any {
	if db.Name() == "postgres" {
		return id.String()
	}
	return id[:]
}

func nullable(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
