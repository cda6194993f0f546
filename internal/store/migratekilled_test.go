package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4/database"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/migrations"
)

// hookedDriver calls before with each change of the database that begins: dirty, run, clean or
// unlock. It calls after when the changes before unlock have ended.
type hookedDriver struct {
	migrationDriver
	before func(change string)
	after  func()
}

func (d hookedDriver) Run(migration io.Reader) error {
	d.before("run")
	defer d.after()
	return d.migrationDriver.Run(migration)
}

func (d hookedDriver) SetVersion(version int, dirty bool) error {
	d.before(map[bool]string{true: "dirty", false: "clean"}[dirty])
	defer d.after()
	return d.migrationDriver.SetVersion(version, dirty)
}

func (d hookedDriver) Unlock() error {
	d.before("unlock")
	return d.migrationDriver.Unlock()
}

// killEnv is the environment variable that makes a child process migrate. Its value is the verb,
// the number of the change before which the child is killed, and the URL of the database.
const killEnv = "HOLDFAST_TEST_MIGRATE_KILLED"

// migrateAndDie is the child process.
func migrateAndDie(t *testing.T, command string) {
	parts := strings.SplitN(command, " ", 3)
	left, err := strconv.Atoi(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	s := opened(t, parts[2])
	sound := s.migrations
	s.migrations = func(ctx context.Context) (migrationDriver, error) {
		driver, err := sound(ctx)
		return hookedDriver{driver, func(string) {
			if left--; left == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}, func() {}}, err
	}
	if parts[0] == "up" {
		err = s.MigrateUp(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if parts[0] == "down" {
		migrateDownTo(t, s, 0)
	}
}

// killed runs a child that is killed before its nth change. It returns false if the child
// makes fewer changes.
func killed(t *testing.T, verb string, n int, dbURL string) bool {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), program, "-test.run=^TestMigrate_Killed$", "-test.count=1")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", killEnv, verb, n, dbURL))
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}

// TestMigrate_Killed kills `migrate up` and `migrate down` before every change that they make. The
// next `up` must bring the schema to its target, and `down` must refuse before that if the schema
// is dirty. By default it kills only on MariaDB, before every third change, because PostgreSQL
// reverts a killed migration itself.
func TestMigrate_Killed(t *testing.T) {
	if command := os.Getenv(killEnv); command != "" { // this is a child process
		migrateAndDie(t, command)
		return
	}
	t.Parallel()
	stride := 3
	if testenv.Thorough() {
		stride = 1
	}
	for _, d := range testenv.Chosen(testenv.Databases(), "MariaDB") {
		for _, verb := range []string{"down", "up"} {
			t.Run(d.Name+"/"+verb, func(t *testing.T) {
				t.Parallel()
				clean := migrated(t, d.URL(t))
				fresh := shape(t, clean)
				latest := versionOf(t, clean)
				deaths := 0
				for n, dies := 1, true; dies; n += stride {
					dbURL := d.URL(t)
					s := opened(t, dbURL)
					if verb == "down" {
						if err := s.MigrateUp(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if dies = killed(t, verb, n, dbURL); dies {
						deaths++
					}
					when := fmt.Sprintf("%s killed before change %d", verb, n)
					if _, dirty, err := s.SchemaVersion(t.Context()); err != nil {
						t.Fatal(err)
					} else if dirty {
						if err := s.MigrateDown(t.Context()); !errors.Is(err, ErrSchemaDirty) {
							t.Errorf("%s, then down: %v, want ErrSchemaDirty", when, err)
						}
					}
					checkCompleted(t, s, when, latest, fresh)
				}
				if want := 5 * int(latest) / stride; deaths < want {
					t.Errorf("%d deaths, want at least %d", deaths, want)
				}
			})
		}
	}
}

// checkCompleted checks that MigrateUp brings the schema to the version and the shape.
func checkCompleted(t *testing.T, s *SQL, when string, version uint, want []string) {
	t.Helper()
	if err := s.MigrateUp(t.Context()); err != nil {
		t.Fatalf("%s, then up: %v", when, err)
	}
	checkVersion(t, s, version)
	if got := shape(t, s); !slices.Equal(got, want) {
		t.Errorf("%s, then up: the schema differs from a fresh one:\n%q\nwant\n%q", when, got, want)
	}
	if _, err := s.LedgerID(t.Context()); err != nil {
		t.Errorf("%s, then up: %v", when, err)
	}
}

// TestMigrateUp_Dirty marks the schema of every version as dirty, as a kill leaves it on MySQL:
// after the last statement of a migration up, and before the first statement of a migration down.
func TestMigrateUp_Dirty(t *testing.T) {
	t.Parallel()
	s := migrated(t, testenv.MariaDB(t))
	fresh := shape(t, s)
	latest := versionOf(t, s)
	for at := int(latest); at > 0; at-- { // the version of the tables
		for _, marked := range []int{at, at - 1} {
			if marked == 0 {
				marked = database.NilVersion
			}
			migrateDownTo(t, s, uint(at))
			id := ledgerID(t, s)
			run(t, s.DB(), "UPDATE schema_migrations SET version = ?, dirty = ?", marked, true)
			when := fmt.Sprintf("the tables of version %d, marked as %d", at, marked)
			checkCompleted(t, s, when, latest, fresh)
			if after := ledgerID(t, s); after != id {
				t.Errorf("%s: the ledger's ID was %v, and is %v", when, id, after)
			}
		}
	}
}

// TestMigrateUp_Refused makes the server refuse a statement in the middle of a migration. The error
// must name it, the schema must be dirty, and the next up must end the migration.
func TestMigrateUp_Refused(t *testing.T) {
	t.Parallel()
	s := migrated(t, testenv.MariaDB(t))
	latest := versionOf(t, s)
	fresh := shape(t, s)
	migrateDownTo(t, s, 2)
	run(t, s.DB(), "ALTER TABLE orders DROP COLUMN expires_at") // an index of migration 3 needs it
	for range 2 {                                               // a dirty schema that is refused stays dirty
		if err := s.MigrateUp(t.Context()); err == nil || !strings.Contains(err.Error(), "ALTER TABLE orders") {
			t.Errorf("error %v, want one with the statement", err)
		}
		if version, dirty, err := s.SchemaVersion(t.Context()); version != 3 || !dirty || err != nil {
			t.Errorf("version %d, dirty %v, error %v; want the dirty version 3", version, dirty, err)
		}
	}
	run(t, s.DB(), "ALTER TABLE orders ADD COLUMN expires_at DATETIME(6) NULL")
	checkCompleted(t, s, "after a refused statement", latest, fresh)
}

// TestMigrate_ServerKilled kills MariaDB after every change of the last `migrate up`, and in a
// thorough run also of the last `down`. Afterwards `up` must complete the migration, and tokens
// must work. A server whose files are in /dev/shm loses nothing. TestRunAgain_LostRow does not
// depend on that.
func TestMigrate_ServerKilled(t *testing.T) {
	t.Parallel()
	latest, err := migrations.Latest(string(sqltx.MySQL))
	if err != nil {
		t.Fatal(err)
	}
	verbs := []string{"up"}
	if testenv.Thorough() {
		verbs = append(verbs, "down")
	}
	server := testenv.OwnMariaDB(t)
	s := migrated(t, server.URL())
	fresh, sound := shape(t, s), s.migrations
	migrate := map[string]func(context.Context) error{"up": s.MigrateUp, "down": s.MigrateDown}
	for _, verb := range verbs {
		for n, crashed := 1, true; crashed; n++ {
			if verb == "up" {
				migrateDownTo(t, s, latest-1)
			}
			left := n
			s.migrations = func(ctx context.Context) (migrationDriver, error) {
				driver, err := sound(ctx)
				return hookedDriver{driver, func(string) {}, func() {
					if left--; left == 0 {
						server.Kill()
					}
				}}, err
			}
			err := migrate[verb](t.Context())
			s.migrations = sound
			if crashed = left <= 0; crashed {
				server.Restart()
			} else if err != nil {
				t.Fatal(err)
			}
			when := fmt.Sprintf("%s, MariaDB killed after change %d", verb, n)
			checkCompleted(t, s, when, latest, fresh)
			var token int64
			if err := s.pool.QueryRowContext(t.Context(), "SELECT NEXTVAL(fencing_tokens)").Scan(&token); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
}

// TestRunAgain_LostRow creates a sequence that exists, on a server that answers its readers with an
// error. Only the error of a sequence without its row may cause a drop.
func TestRunAgain_LostRow(t *testing.T) {
	t.Parallel()
	const sequence, table = "CREATE /*M! SEQUENCE tokens */", "CREATE TABLE tokens (a INTEGER)"
	lost, denied := &mysql.MySQLError{Number: 1032}, &mysql.MySQLError{Number: 1142}
	for _, test := range []struct {
		statement string
		answer    error
		want      error
		ran       []string
	}{
		{sequence, lost, nil, []string{sequence, "DROP TABLE tokens", sequence}},
		{sequence, denied, denied, []string{sequence}},
		{table, lost, nil, []string{table}},
	} {
		pool := sql.OpenDB(refusing{test.answer})
		defer pool.Close()
		var ran existing
		d := &stepDriver{migrationDriver: &ran, sql: &SQL{pool: pool}}
		if err := d.runAgain(t.Context(), test.statement); !errors.Is(err, test.want) {
			t.Errorf("%s, then %v: got %v", test.statement, test.answer, err)
		}
		if !slices.Equal(ran.texts, test.ran) {
			t.Errorf("%s, then %v: ran %q", test.statement, test.answer, ran.texts)
		}
	}
}

// TestHasRun checks for which statements each error of the server means that the statement has
// already run.
func TestHasRun(t *testing.T) {
	t.Parallel()
	const rename = "ALTER TABLE a RENAME COLUMN b TO c"
	for statement, numbers := range map[string][]uint16{
		"CREATE TABLE a (b INTEGER)":   {1050},
		"DROP TABLE a":                 {1051},
		"ALTER TABLE a ADD COLUMN b":   {1060, 1091},
		rename:                         {1054, 1060, 1091},
		"UPDATE a SET b = 1":           nil,
		"INSERT INTO a (b) VALUES (1)": nil,
	} {
		for _, number := range []uint16{1050, 1051, 1054, 1060, 1091, 1142} {
			err := database.Error{OrigErr: &mysql.MySQLError{Number: number}}
			if got := hasRun(statement, err); got != slices.Contains(numbers, number) {
				t.Errorf("%s, error %d: %v", statement, number, got)
			}
		}
	}
}

// refusing is a database that answers every connection with the error.
type refusing struct{ err error }

func (r refusing) Connect(context.Context) (driver.Conn, error) { return nil, r.err }
func (refusing) Driver() driver.Driver                          { return nil }

// existing is a driver that records statements, and refuses the first, because its table exists.
type existing struct {
	migrationDriver
	texts []string
}

func (r *existing) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if r.texts = append(r.texts, string(text)); len(r.texts) == 1 {
		return database.Error{OrigErr: &mysql.MySQLError{Number: 1050}}
	}
	return err
}

// shape returns the columns and indexes of the schema, in any order, and the settings of the
// tables.
func shape(t testing.TB, s *SQL) []string {
	t.Helper()
	queries := map[sqltx.Dialect][]string{
		sqltx.MySQL: {
			`SELECT CONCAT_WS(' ', table_name, column_name, column_type, is_nullable, COALESCE(column_default, '-'), COALESCE(collation_name, '-'), column_key)
				FROM information_schema.columns WHERE table_schema = DATABASE()`,
			`SELECT CONCAT_WS(' ', table_name, index_name, non_unique, seq_in_index, column_name)
				FROM information_schema.statistics WHERE table_schema = DATABASE()`,
			`SELECT CONCAT_WS(' ', table_name, engine, table_collation) FROM information_schema.tables WHERE table_schema = DATABASE()`,
		},
		sqltx.Postgres: {
			`SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, COALESCE(column_default, '-'), collation_name)
				FROM information_schema.columns WHERE table_schema = CURRENT_SCHEMA()`,
			`SELECT indexdef FROM pg_indexes WHERE schemaname = CURRENT_SCHEMA()`,
			`SELECT concat_ws(' ', relname, reloptions::text) FROM pg_class WHERE relnamespace = CURRENT_SCHEMA()::regnamespace AND relkind = 'r'`,
		},
		sqltx.SQLite: {
			`SELECT m.name || ' ' || p.name || ' ' || p.type || ' ' || p."notnull" || ' ' || COALESCE(p.dflt_value, '-') || ' ' || p.pk
				FROM sqlite_master AS m, pragma_table_info(m.name) AS p WHERE m.type = 'table'`,
			`SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL`,
		},
	}[s.Dialect()]
	var all []string
	for _, query := range queries {
		var rows []string
		if err := s.DB().Raw(query).Scan(&rows).Error; err != nil {
			t.Fatal(err)
		}
		all = append(all, rows...)
	}
	slices.Sort(all)
	return all
}
