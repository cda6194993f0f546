// Package storetest opens stores for a test, which closes them when it ends.
package storetest

import (
	"context"
	"database/sql"

	"github.com/redis/go-redis/v9"

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

func check(t testenv.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}
