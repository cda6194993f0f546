// Package storetest opens stores for a test, which closes them when it ends.
package storetest

import (
	"context"
	"database/sql"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Redis opens the Redis of the URL.
func Redis(t testenv.T, url string) redis.UniversalClient {
	t.Helper()
	client, err := store.OpenRedis(context.Background(), url)
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// SQL opens the database of the URL.
func SQL(t testenv.T, url string) *store.SQL {
	t.Helper()
	db, err := store.OpenSQL(context.Background(), url)
	check(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Migrated opens the database of the URL and creates the schema in it.
func Migrated(t testenv.T, url string) *store.SQL {
	t.Helper()
	db := SQL(t, url)
	check(t, db.MigrateUp(context.Background()))
	return db
}

// MigratedURL creates the schema in the database of the URL, and returns the URL.
func MigratedURL(t testenv.T, url string) string {
	t.Helper()
	check(t, Migrated(t, url).Close())
	return url
}

// Sessions opens sessions of the database of the URL, as locks have them.
func Sessions(t testenv.T, url string) *sql.DB {
	t.Helper()
	pool, err := store.OpenSessions(url)
	check(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// LockRow locks the stock row of the SKU until unlock is called, or the test ends.
func LockRow(t testenv.T, dbURL string, sku stock.SKU) (unlock func()) {
	t.Helper()
	return Hold(t, dbURL, "SELECT sku FROM stock WHERE sku = '"+string(sku)+"' FOR UPDATE")
}

// Hold runs a query in a transaction that stays open until release is called, or the test ends. The
// query must return a row. The session may be idle for as long as the test needs.
func Hold(t testenv.T, dbURL, query string) (release func()) {
	t.Helper()
	ctx := context.Background()
	tx, err := Sessions(t, dbURL).BeginTx(ctx, nil)
	check(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // closing the pool does not end it
	idle := "SET idle_in_transaction_session_timeout = 0"
	if strings.HasPrefix(dbURL, "mysql:") {
		idle = "SET @held = 1 /*M! , SESSION idle_transaction_timeout = 0 */" // MySQL does not have the variable
	}
	_, err = tx.ExecContext(ctx, idle)
	check(t, err)
	check(t, tx.QueryRowContext(ctx, query).Scan(new(any)))
	return sync.OnceFunc(func() { check(t, tx.Rollback()) })
}

func check(t testenv.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}
