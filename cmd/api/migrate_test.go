package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// mustRun checks that the command exits with the code and prints the words.
func mustRun(t *testing.T, command, dbURL string, code int, says ...string) {
	t.Helper()
	ran(t, code, append(strings.Fields(command), "--db", dbURL), says...)
}

// TestMigrate migrates a SQLite file up, down and up again, and serves on the new schema. The tests
// of package store migrate every database.
func TestMigrate(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	for _, command := range []string{"migrate version", "migrate down", "serve --listen 127.0.0.1:0", "reconcile --strategy merged --migrate", "drain --migrate"} {
		mustRun(t, command, url, 1, "no such file", "api migrate up")
		if _, err := os.Stat(strings.TrimPrefix(url, "sqlite://")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s has made the file: %v", command, err)
		}
	}
	for _, step := range []struct{ command, says string }{
		{"migrate up", "schema version 6; it was 0\n"},
		{"migrate up", "schema version 6; nothing was changed\n"},
		{"migrate version", "schema version 6\n"},
		{"migrate down", "schema version 5"},
		{"migrate down", "schema version 4"},
		{"migrate down", "schema version 3"},
		{"migrate down", "schema version 2"},
		{"migrate down", "schema version 1"},
		{"migrate down", "schema version 0; it was 1\n"},
		{"migrate down", "schema version 0; nothing was changed\n"},
		{"migrate version", "schema version 0\n"},
	} {
		mustRun(t, step.command, url, 0, step.says)
	}
	api := serveHere(t, "--migrate", "--strategy", "merged", "--db", url)
	setStock(t, api.URL(), "a", 1)
	mustCall(t, http.StatusCreated, http.MethodPost, api.URL()+"/orders", orderBody("u", "a", 1))
	downTo(t, url, 2) // allowed, because no claims are being counted, no part has units, no order is queued, and none has changed
	mustRun(t, "migrate down", url, 1, "reverting migration 2 would lose", "restore the backup")
}

// latestSchema returns the newest version of the schema. SQLite has one migration less, because it
// has no locks and no tokens.
func latestSchema(url string) int {
	if strings.HasPrefix(url, "sqlite:") {
		return 6
	}
	return 7
}

// downTo reverts all migrations after the version.
func downTo(t *testing.T, url string, version int) {
	t.Helper()
	for now := latestSchema(url) - 1; now >= version; now-- {
		mustRun(t, "migrate down", url, 0, fmt.Sprintf("schema version %d", now))
	}
}

// TestMigrate_BesideInstance reverts a migration while an instance serves, and applies it again.
// The instance must not be ready meanwhile. Once an order has changed, the migration must not be
// reverted, and units that the order has returned must stay returned.
func TestMigrate_BesideInstance(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.Databases() {
		if d.Name == "MariaDB" && !testenv.Thorough() {
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			url := d.URL(t)
			api := serveHere(t, "--migrate", "--strategy", "merged", "--db", url)
			setStock(t, api.URL(), "a", 5)
			order := decoded[placed](t, mustCall(t, http.StatusCreated, http.MethodPost, api.URL()+"/orders", orderBody("u", "a", 2)))
			downTo(t, url, 2)
			mustCall(t, http.StatusServiceUnavailable, http.MethodGet, api.URL()+"/readyz", "")
			mustRun(t, "migrate up", url, 0, fmt.Sprintf("schema version %d", latestSchema(url)))
			waitReady(t, api.URL())

			mustCall(t, http.StatusOK, http.MethodPost, api.URL()+"/orders/"+order.ID+"/pay", `{"payment_id":"p"}`)
			mustCall(t, http.StatusOK, http.MethodPost, api.URL()+"/orders/"+order.ID+"/refund", `{"restock":true}`)
			downTo(t, url, 3)
			mustRun(t, "migrate down", url, 1, "reverting migration 3 would lose payments", "which refunds returned units", "restore the backup")
			mustRun(t, "migrate up", url, 0, fmt.Sprintf("schema version %d", latestSchema(url)))
			waitReady(t, api.URL())
			if a := waitAtRest(t, api.URL(), "a"); a.Sold != 0 {
				t.Errorf("after the refund: %+v", a)
			}

			db := storetest.SQL(t, url)
			schemaIs := func(version int, dirty bool) {
				t.Helper()
				if err := db.DB().Exec("UPDATE schema_migrations SET version = ?, dirty = ?", version, dirty).Error; err != nil {
					t.Fatal(err)
				}
			}
			// The version alone takes the instance out of service, even if its statements would
			// still work.
			schemaIs(latestSchema(url)-1, false)
			mustCall(t, http.StatusServiceUnavailable, http.MethodGet, api.URL()+"/readyz", "")
			// A newer program that migrates the schema does not.
			schemaIs(latestSchema(url)+1, true)
			waitReady(t, api.URL())
			// Only the newer program has the migration.
			mustRun(t, "migrate version", url, 0, fmt.Sprintf("schema version %d (dirty", latestSchema(url)+1), "; use the newer program)")
			schemaIs(latestSchema(url), true)
			mustRun(t, "migrate version", url, 0, fmt.Sprintf("schema version %d (dirty", latestSchema(url)), db.FixSchema(store.ErrSchemaDirty))
		})
	}
}
