package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// BenchmarkInserts inserts groups of orders, each in a transaction, in two ways: as the ledger
// does, and with a statement prepared for the size of the group.
func BenchmarkInserts(b *testing.B) {
	const group = 30
	own := []int{os.Getpid()}
	for _, bm := range []struct {
		name  string
		start func(testenv.T, ...string) *testenv.DatabaseServer
		other func(b *testing.B, url string) func([]*order.Order) error
	}{
		{"MariaDB", testenv.OwnMariaDB, preparedMariaDB},
		{"PostgreSQL", testenv.OwnPostgres, preparedPostgres},
	} {
		server := bm.start(b)
		db := storetest.Migrated(b, server.URL())
		ours := func(orders []*order.Order) error {
			tx, err := db.Ledger().Begin(b.Context())
			if err != nil {
				return err
			}
			tx.AtCommit(inserts(tx.Dialect(), idLiteral(orders[0].ID), orders...)...)
			return tx.Commit()
		}
		for name, insert := range map[string]func([]*order.Order) error{"as the ledger": ours, "prepared": bm.other(b, server.URL())} {
			b.Run(bm.name+"/"+name, func(b *testing.B) {
				before, serverBefore := machine.CPUTime(own), machine.CPUTime(server.PIDs())
				for b.Loop() {
					if err := insert(newOrders(group)); err != nil {
						b.Fatal(err)
					}
				}
				n := float64(group * b.N)
				b.ReportMetric(float64((machine.CPUTime(own)-before).Microseconds())/n, "cpu-µs/order")
				b.ReportMetric(float64((machine.CPUTime(server.PIDs())-serverBefore).Microseconds())/n, "server-µs/order")
			})
		}
	}
}

// newOrders returns n pending orders of one line, as they arrive.
func newOrders(n int) []*order.Order {
	orders, now := make([]*order.Order, n), time.Now().UTC().Truncate(time.Microsecond)
	for i := range orders {
		orders[i] = &order.Order{
			ID: uuid.Must(uuid.NewV7()), TakeID: uuid.New(), Buyer: "u-" + uuid.NewString()[:13], Status: order.Pending,
			Lines: []stock.Line{{SKU: "hot", Quantity: 1}}, Strategy: "merged", CreatedAt: now, ExpiresAt: now.Add(15 * time.Minute),
		}
	}
	return orders
}

// rows returns a list of rows of placeholders.
func rows(n, columns int, placeholder func(i int) string) string {
	var list []string
	for row := range n {
		var values []string
		for column := range columns {
			values = append(values, placeholder(row*columns+column+1))
		}
		list = append(list, "("+strings.Join(values, ",")+")")
	}
	return strings.Join(list, ",")
}

const (
	insertOrders = "INSERT INTO orders (id,take_id,buyer_id,status,strategy,created_at,expires_at) VALUES "
	insertLines  = "INSERT INTO order_lines (order_id,sku,quantity) VALUES "
)

// values returns the arguments of the two statements. id converts an ID.
func values(orders []*order.Order, id func(uuid.UUID) any) (ofOrders, ofLines []any) {
	for _, o := range orders {
		ofOrders = append(ofOrders, id(o.ID), id(o.TakeID), o.Buyer, string(o.Status), o.Strategy, o.CreatedAt, o.ExpiresAt)
		ofLines = append(ofLines, id(o.ID), string(o.Lines[0].SKU), o.Lines[0].Quantity)
	}
	return ofOrders, ofLines
}

// preparedMariaDB uses a round trip for each statement, because the protocol cannot send several
// prepared statements at once.
func preparedMariaDB(b *testing.B, serverURL string) func([]*order.Order) error {
	u, err := url.Parse(serverURL)
	if err != nil {
		b.Fatal(err)
	}
	c := mysql.NewConfig()
	c.User, c.Net, c.Addr, c.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	connector, err := mysql.NewConnector(c)
	if err != nil {
		b.Fatal(err)
	}
	db := sql.OpenDB(connector)
	b.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	prepared := make(map[string]*sql.Stmt)
	run := func(text string, args ...any) error {
		if prepared[text] == nil {
			statement, err := conn.PrepareContext(b.Context(), text)
			if err != nil {
				return err
			}
			b.Cleanup(func() { _ = statement.Close() })
			prepared[text] = statement
		}
		_, err := prepared[text].Exec(args...)
		return err
	}
	question := func(int) string { return "?" }
	return func(orders []*order.Order) error {
		ofOrders, ofLines := values(orders, func(id uuid.UUID) any { return id[:] })
		return errors.Join(
			run("START TRANSACTION"),
			run(insertOrders+rows(len(orders), 7, question), ofOrders...),
			run(insertLines+rows(len(orders), 3, question), ofLines...),
			run("COMMIT"))
	}
}

func preparedPostgres(b *testing.B, serverURL string) func([]*order.Order) error {
	conn, err := pgx.Connect(b.Context(), serverURL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	dollar := func(i int) string { return fmt.Sprint("$", i) }
	return func(orders []*order.Order) error {
		ofOrders, ofLines := values(orders, func(id uuid.UUID) any { return [16]byte(id) })
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		batch.Queue(insertOrders+rows(len(orders), 7, dollar), ofOrders...)
		batch.Queue(insertLines+rows(len(orders), 3, dollar), ofLines...)
		batch.Queue("COMMIT")
		return conn.SendBatch(b.Context(), batch).Close()
	}
}
