package sqltx_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/loglimit"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
)

// TestSlowLog checks which statements are logged, and with which attributes.
func TestSlowLog(t *testing.T) {
	for name, test := range map[string]struct {
		took time.Duration
		rows int64
		err  error
		want string
	}{
		"fast":     {took: 0, rows: 1},
		"slow":     {took: 2 * time.Second, rows: 1, want: `rows=1 seconds=2\.\d+ error=<nil>`},
		"no rows":  {took: 2 * time.Second, rows: -1, want: `seconds=2\.\d+ error=<nil>`},
		"failed":   {took: 2 * time.Second, rows: -1, err: errors.New("refused"), want: `seconds=2\.\d+ error=refused`},
		"canceled": {took: 2 * time.Second, rows: -1, err: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			sqltx.SlowLog(slog.New(slog.NewTextHandler(&log, nil))).
				Trace(t.Context(), time.Now().Add(-test.took), func() (string, int64) { return "SELECT 1", test.rows }, test.err)
			line := regexp.MustCompile(`^time=\S+ level=WARN msg="slow statement" sql="SELECT 1" ` + test.want + "\n$")
			if test.want == "" {
				line = regexp.MustCompile("^$")
			}
			if !line.MatchString(log.String()) {
				t.Errorf("logged %q, want %s", log.String(), line)
			}
		})
	}
}

// TestSlowLog_IsCounted checks that the service's log counts slow statements
// instead of writing a line for each, whether they succeed or fail.
func TestSlowLog_IsCounted(t *testing.T) {
	var log bytes.Buffer
	counting := loglimit.NewHandler(slog.NewTextHandler(&log, nil))
	defer counting.Close()
	slow := sqltx.SlowLog(slog.New(counting))
	for range 3 {
		slow.Trace(t.Context(), time.Now().Add(-2*time.Second), func() (string, int64) { return "SELECT 1", 1 }, nil)
	}
	if lines := strings.Count(log.String(), "slow statement"); lines != 1 {
		t.Errorf("%d lines:\n%s", lines, log.String())
	}
}

// slowPath is a way to run statements. One of the statements takes 1.1 s.
type slowPath struct {
	name  string
	query string // query to add to the URL
	do    func(ctx context.Context, db *sqltx.DB, sku string) error
	want  string // the statement that must be logged
	rows  bool   // the number of rows is logged
}

// slowLine is a line of the log.
type slowLine struct {
	Msg, SQL, Error string
	Seconds         float64
	Rows            *int
}

// TestSlowLog_EveryPath checks that every path to the database logs a slow
// statement once: through the logger that LogTo names, and without the statement's values.
func TestSlowLog_EveryPath(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, dbURL string) {
		const (
			update = "UPDATE stock SET version = version + 1 WHERE sku = ?"
			insert = "INSERT INTO stock (sku, kind, total, available)"
			values = " VALUES (?, 'product', 1, 1)"
		)
		admin := storetest.Migrated(t, dbURL).Ledger()
		dialect := admin.Dialect()
		slow := update + " AND SLEEP(1.1) = 0"
		if dialect == sqltx.Postgres {
			slow = update + " AND pg_sleep(1.1)::text = ''"
		}
		logged := slow
		if dialect == sqltx.Postgres {
			logged = strings.Replace(slow, "?", "$1", 1)
		}
		statement := func(sql string, args ...any) sqltx.Statement {
			return sqltx.Statement{SQL: sql, Args: args}
		}
		both := logged + "; " + insert
		insertIf := func(ctx context.Context, db *sqltx.DB, first sqltx.Statement, sku string) error {
			committed, err := commitIf(ctx, db, first, 1, func(checked func(string) string) []sqltx.Statement {
				return []sqltx.Statement{statement(insert+" VALUES (?, 'product', "+checked("1")+", 1)", "new-"+sku)}
			})
			if err == nil && !committed {
				return errors.New("not committed")
			}
			return err
		}
		paths := []slowPath{
			{name: "Exec", do: func(ctx context.Context, db *sqltx.DB, sku string) error {
				_, err := db.Exec(ctx, slow, sku)
				return err
			}, want: logged, rows: true},
			{name: "Exec in a transaction", do: func(ctx context.Context, db *sqltx.DB, sku string) error {
				return db.Transact(ctx, func(tx *sqltx.Tx) error {
					_, err := tx.Exec(ctx, slow, sku)
					return err
				})
			}, want: logged, rows: true},
			{name: "ExecAll", do: func(ctx context.Context, db *sqltx.DB, sku string) error {
				_, err := db.ExecAll(ctx, statement(slow, sku), statement(insert+values, "new-"+sku))
				return err
			}, want: both},
			{name: "ExecAll in a transaction", do: func(ctx context.Context, db *sqltx.DB, sku string) error {
				return db.Transact(ctx, func(tx *sqltx.Tx) error {
					_, err := tx.ExecAll(ctx, statement(slow, sku), statement(insert+values, "new-"+sku))
					return err
				})
			}, want: both},
		}
		slowCommitIf := func(ctx context.Context, db *sqltx.DB, sku string) error {
			return insertIf(ctx, db, statement(slow, sku), sku)
		}
		switch dialect {
		case sqltx.MySQL:
			paths = append(paths,
				slowPath{name: "Commit in one text", do: slowCommitIf, want: both + "; COMMIT"},
				slowPath{name: "Commit in several", query: "?interpolateParams=false", do: slowCommitIf, want: both + "; COMMIT"})
		case sqltx.Postgres:
			run(t, admin, "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.1); RETURN NULL; END'")
			run(t, admin, `CREATE CONSTRAINT TRIGGER sleep AFTER INSERT ON stock DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW WHEN (NEW.sku LIKE 'new-%COMMIT%') EXECUTE FUNCTION sleep()`)
			paths = append(paths,
				slowPath{name: "Commit in a pipeline", do: slowCommitIf, want: "WITH affected AS (" + logged +
					" RETURNING 1) SELECT CASE WHEN count(*) = $2 THEN (1 + count(*)) ELSE 9223372036854775807 + (1 + count(*)) END FROM affected; " + insert + "; COMMIT"},
				slowPath{name: "COMMIT", do: func(ctx context.Context, db *sqltx.DB, sku string) error {
					return db.Transact(ctx, func(tx *sqltx.Tx) error {
						_, err := tx.ExecAll(ctx, statement(insert+values, "new-"+sku))
						return err
					})
				}, want: "COMMIT"})
		}

		logs := make([]bytes.Buffer, len(paths))
		var running sync.WaitGroup // all paths run at once, whatever -parallel says, because they only sleep
		for n, path := range paths {
			sku := "sesame " + path.name
			insertStock(t, admin, sku)
			s := storetest.SQL(t, dbURL+path.query)
			s.LogTo(slog.New(slog.NewJSONHandler(&logs[n], nil)))
			running.Go(func() {
				if err := path.do(t.Context(), s.Ledger(), sku); err != nil {
					t.Errorf("%s: %v", path.name, err)
				}
			})
		}
		running.Wait()
		for n, path := range paths {
			text := logs[n].String()
			var lines []slowLine // lines of the path's statement; on a busy machine, other statements may be slow too
			for each := range strings.Lines(text) {
				var line slowLine
				err := json.Unmarshal([]byte(each), &line)
				if logged := strings.Replace(line.SQL, "$1$", "$1", 1); err != nil || logged == path.want { // gorm writes placeholders in this form
					lines = append(lines, line)
				}
			}
			if len(lines) != 1 {
				t.Errorf("%s logged %q, want the statement %s once", path.name, text, path.want)
				continue
			}
			line := lines[0]
			if line.Msg != "slow statement" || line.Error != "" {
				t.Errorf("%s logged %s, want the statement %s", path.name, text, path.want)
			}
			if line.Seconds < 1 || line.Seconds > 10 {
				t.Errorf("%s logged %v seconds, want 1.1", path.name, line.Seconds)
			}
			if (line.Rows != nil) != path.rows || path.rows && *line.Rows != 1 {
				t.Errorf("%s logged %s, the number of rows: %v", path.name, text, path.rows)
			}
			if strings.Contains(text, "sesame") {
				t.Errorf("%s logged a value: %s", path.name, text)
			}
		}
	})
}
