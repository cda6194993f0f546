package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// shrink marks the row that records an administrator's removal of stock. Such a row goes through
// the gate like an order, but is not one: it is never shown and has no lines.
const shrink order.Status = "shrink"

// readOrders reads the orders with these IDs, by ID. It leaves out absent ones.
func readOrders(ctx context.Context, db *sqltx.DB, ids []uuid.UUID) (map[uuid.UUID]*order.Order, error) {
	keys := make([]any, len(ids))
	for i, id := range ids {
		keys[i] = db.Dialect().UUID(id)
	}
	return selectOrders(ctx, db, "orders LEFT JOIN order_lines ON order_id = id WHERE id IN ?", keys)
}

// selectOrders reads the orders, with their lines, that the rest of the statement selects from.
func selectOrders(ctx context.Context, db *sqltx.DB, from string, args ...any) (map[uuid.UUID]*order.Order, error) {
	found := make(map[uuid.UUID]*order.Order)
	err := db.QueryEach(ctx, func(rows *sql.Rows) error {
		var (
			o            order.Order
			payment, sku sql.NullString
			quantity     sql.NullInt64
		)
		err := rows.Scan(&o.ID, &o.TakeID, &o.Buyer, &o.Status, &o.Strategy, (*sqltx.Time)(&o.CreatedAt), (*sqltx.Time)(&o.ExpiresAt), (*sqltx.Time)(&o.QueuedUntil),
			&o.Version, &payment, &o.Restocked, &sku, &quantity)
		if err != nil {
			return err
		}
		if found[o.ID] == nil {
			o.PaymentID = payment.String
			found[o.ID] = &o
		}
		if sku.Valid { // otherwise the order has no lines
			of := found[o.ID]
			of.Lines = append(of.Lines, stock.Line{SKU: stock.SKU(sku.String), Quantity: quantity.Int64})
		}
		return nil
	}, `SELECT id, take_id, buyer_id, status, strategy, created_at, expires_at, queued_until, version, payment_id, restocked, sku, quantity
		FROM `+from+` ORDER BY id, sku`, args...)
	if err != nil {
		return nil, fmt.Errorf("reading orders: %w", err)
	}
	return found, nil
}

// insertOrder inserts the order with its lines. db must be a transaction if the order has lines.
func insertOrder(ctx context.Context, db execer, o *order.Order) error {
	_, err := db.ExecAll(ctx, inserts(db.Dialect(), idLiteral(o.ID), o)...)
	return err
}

// execer is a database or a transaction.
type execer interface {
	Dialect() sqltx.Dialect
	ExecAll(ctx context.Context, statements ...sqltx.Statement) (affected []int64, err error)
}

// idLiteral is the ID of an order as the statements for MySQL and SQLite contain it.
func idLiteral(id uuid.UUID) string { return string(sqltx.AppendBytes(nil, id[:])) }

// inserts returns the statements that insert the orders with their lines, in the order given. first
// is the expression for the ID of the first order, as idLiteral writes it. It is not used for
// PostgreSQL.
func inserts(dialect sqltx.Dialect, first string, orders ...*order.Order) []sqltx.Statement {
	lines := 0
	for _, o := range orders {
		lines += len(o.Lines)
	}
	if dialect.Arrays() {
		statements := []sqltx.Statement{insertOrderArrays(orders)}
		if lines > 0 {
			statements = append(statements, insertLineArrays(orders, lines))
		}
		return statements
	}
	statements := []sqltx.Statement{insertOrderRows(dialect, first, orders)}
	if lines > 0 {
		statements = append(statements, insertLineRows(dialect, orders, lines))
	}
	return statements
}

// insertOrderRows inserts the rows of the orders, without their lines. The
// database parses each value of each group. All values are literals, which are the
// cheapest to write and to parse, and the columns expires_at and queued_until are left
// out unless an order has a value for them.
func insertOrderRows(dialect sqltx.Dialect, first string, orders []*order.Order) sqltx.Statement {
	columns := "id,take_id,buyer_id,status,strategy,created_at"
	expires := slices.ContainsFunc(orders, func(o *order.Order) bool { return !o.ExpiresAt.IsZero() })
	if expires {
		columns += ",expires_at"
	}
	queued := slices.ContainsFunc(orders, func(o *order.Order) bool { return !o.QueuedUntil.IsZero() })
	if queued {
		columns += ",queued_until"
	}
	sql := make([]byte, 0, 150+200*len(orders))
	sql = append(sql, "INSERT INTO orders ("+columns+") VALUES "...)
	for i, o := range orders {
		if i == 0 {
			sql = append(sql, "("+first...)
		} else {
			sql = sqltx.AppendBytes(append(sql, ",("...), o.ID[:])
		}
		sql = sqltx.AppendBytes(append(sql, ','), o.TakeID[:])
		sql = dialect.AppendText(append(sql, ','), o.Buyer)
		sql = dialect.AppendText(append(sql, ','), string(o.Status))
		sql = dialect.AppendText(append(sql, ','), o.Strategy)
		sql = dialect.AppendTime(append(sql, ','), o.CreatedAt)
		if expires {
			sql = dialect.AppendTime(append(sql, ','), o.ExpiresAt)
		}
		if queued {
			sql = dialect.AppendTime(append(sql, ','), o.QueuedUntil)
		}
		sql = append(sql, ')')
	}
	return sqltx.Statement{SQL: string(sql)}
}

// insertLineRows inserts all lines of the orders. Their number is n.
func insertLineRows(dialect sqltx.Dialect, orders []*order.Order, n int) sqltx.Statement {
	sql := make([]byte, 0, 100+70*n)
	sql = append(sql, "INSERT INTO order_lines (order_id,sku,quantity) VALUES "...)
	for _, o := range orders {
		for _, line := range o.Lines {
			sql = sqltx.AppendBytes(append(sql, '('), o.ID[:])
			sql = dialect.AppendText(append(sql, ','), string(line.SKU))
			sql = strconv.AppendInt(append(sql, ','), line.Quantity, 10)
			sql = append(sql, "),"...)
		}
	}
	return sqltx.Statement{SQL: string(sql[:len(sql)-1])} // without the last comma
}

// insertOrderArrays inserts the rows of the orders from one array for each column,
// so that one prepared statement serves groups of every size.
func insertOrderArrays(orders []*order.Order) sqltx.Statement {
	var (
		ids        = make([][16]byte, len(orders))
		takes      = make([][16]byte, len(orders))
		buyers     = make([]string, len(orders))
		statuses   = make([]string, len(orders))
		strategies = make([]string, len(orders))
		created    = make([]time.Time, len(orders))
		expires    = make([]*time.Time, len(orders))
		queued     = make([]*time.Time, len(orders))
	)
	for i, o := range orders {
		ids[i], takes[i], buyers[i] = o.ID, o.TakeID, o.Buyer
		statuses[i], strategies[i] = string(o.Status), o.Strategy
		created[i], expires[i], queued[i] = o.CreatedAt, sqltx.Nullable(o.ExpiresAt), sqltx.Nullable(o.QueuedUntil)
	}
	return sqltx.Statement{Args: []any{ids, takes, buyers, statuses, strategies, created, expires, queued}, SQL: `INSERT INTO orders
		(id, take_id, buyer_id, status, strategy, created_at, expires_at, queued_until)
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::timestamptz[])`}
}

func insertLineArrays(orders []*order.Order, n int) sqltx.Statement {
	var (
		ids        = make([][16]byte, 0, n)
		skus       = make([]string, 0, n)
		quantities = make([]int64, 0, n)
	)
	for _, o := range orders {
		for _, line := range o.Lines {
			ids = append(ids, o.ID)
			skus = append(skus, string(line.SKU))
			quantities = append(quantities, line.Quantity)
		}
	}
	return sqltx.Statement{Args: []any{ids, skus, quantities}, SQL: `INSERT INTO order_lines (order_id, sku, quantity)
		SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[])`}
}

// History reads the changes of an order up to the given version, in their order. The first status
// is not a change.
func (l *Ledger) History(ctx context.Context, id uuid.UUID, version int64) (steps []order.Step, err error) {
	steps, err = sqltx.ReadAll(ctx, l.db, func(s *order.Step) []any { return []any{&s.Status, (*sqltx.Time)(&s.At)} },
		"SELECT status, at FROM order_history WHERE order_id = ? AND version <= ? ORDER BY version", l.db.Dialect().UUID(id), version)
	if err != nil {
		return nil, fmt.Errorf("reading the history of order %s: %w", id, err)
	}
	return steps, nil
}

// Orders reads the orders that the filter selects, sorted by ID, as of one moment. It leaves
// out void orders. With a buyer it reads an index of the buyer's orders; without one it may
// read the whole table to find a rare status. It returns once the orders are as durable as
// their COMMIT promised.
func (l *Ledger) Orders(ctx context.Context, f order.Filter) ([]order.Order, error) {
	page := "SELECT id AS page_id FROM orders WHERE id > ? AND status NOT IN ?"
	args := []any{l.db.Dialect().UUID(f.After), []string{string(order.Void), string(shrink)}}
	if f.Buyer != "" {
		page, args = page+" AND buyer_id = ?", append(args, f.Buyer)
	}
	if f.Status != "" {
		page, args = page+" AND status = ?", append(args, string(f.Status))
	}
	found, err := selectOrders(ctx, l.db, "("+page+" ORDER BY id LIMIT ?) AS page JOIN orders ON id = page_id LEFT JOIN order_lines ON order_id = id", append(args, f.Limit)...)
	if err == nil && len(found) > 0 {
		err = l.db.Confirm(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("listing orders: %w", err)
	}
	orders := make([]order.Order, 0, len(found))
	for _, o := range found {
		orders = append(orders, *o)
	}
	slices.SortFunc(orders, func(a, b order.Order) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return orders, nil
}
