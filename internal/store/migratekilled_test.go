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

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/migrations"
)

// killingDriver kills the process before its nth change of the database.
type killingDriver struct {
	migrationDriver
	left *int
}

func (d killingDriver) count() {
	if *d.left--; *d.left == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (d killingDriver) Run(migration io.Reader) error {
	d.count()
	return d.migrationDriver.Run(migration)
}

func (d killingDriver) SetVersion(version int, dirty bool) error {
	d.count()
	return d.migrationDriver.SetVersion(version, dirty)
}

func (d killingDriver) Unlock() error {
	d.count()
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
		return killingDriver{driver, &left}, err
	}
	if parts[0] == "up" {
		err = s.MigrateUp(t.Context())
	} else {
		err = toEmpty(t.Context(), s)
	}
	if err != nil {
		t.Fatal(err)
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

// toEmpty reverts every migration. One more step repairs the schema.
func toEmpty(ctx context.Context, s *SQL) error {
	latest, err := migrations.Latest(string(s.dialect))
	if err != nil {
		return err
	}
	for range latest + 1 {
		if err := s.MigrateDown(ctx); err != nil {
			return err
		}
	}
	version, dirty, err := s.SchemaVersion(ctx)
	if err == nil && (version > 0 || dirty) {
		err = fmt.Errorf("version %d, dirty %v", version, dirty)
	}
	return err
}

// TestMigrate_Killed kills `migrate up` and `migrate down` before every change that they make. The
// next `up` or `down` must bring the schema to its target. By default it kills only `down` on
// MariaDB, before every third change, because PostgreSQL reverts a killed migration itself.
func TestMigrate_Killed(t *testing.T) {
	if command := os.Getenv(killEnv); command != "" { // this is a child process
		migrateAndDie(t, command)
		return
	}
	t.Parallel()
	for _, d := range testenv.Databases() {
		for _, verb := range []string{"down", "up"} {
			if d.Name+" "+verb != "MariaDB down" && !testenv.Thorough() {
				continue
			}
			t.Run(d.Name+"/"+verb, func(t *testing.T) {
				t.Parallel()
				fresh := shape(t, migrated(t, d.URL(t)))
				latest, err := migrations.Latest(string(opened(t, d.URL(t)).dialect))
				if err != nil {
					t.Fatal(err)
				}
				deaths, stride := 0, 3
				if testenv.Thorough() {
					stride = 1
				}
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
					if n%2 == 0 {
						if err := toEmpty(t.Context(), s); err != nil {
							t.Errorf("%s, then down: %v", when, err)
						}
						if got := tables(t, s); len(got) != 0 {
							t.Errorf("%s, then down: tables %q are left", when, got)
						}
					}
					if err := s.MigrateUp(t.Context()); err != nil {
						t.Errorf("%s, then up: %v", when, err)
						continue
					}
					checkVersion(t, s, latest)
					if got := shape(t, s); !slices.Equal(got, fresh) {
						t.Errorf("%s, then up: the schema differs from a fresh one:\n%q\nwant\n%q", when, got, fresh)
					}
					if _, err := s.LedgerID(t.Context()); err != nil {
						t.Errorf("%s, then up: %v", when, err)
					}
				}
				if want := 5 * int(latest) / stride; deaths < want {
					t.Errorf("%d deaths, want at least %d", deaths, want)
				}
			})
		}
	}
}

// crashingDriver kills the server after its nth change of the database.
type crashingDriver struct {
	migrationDriver
	left  *int
	crash func()
}

func (d crashingDriver) count() {
	if *d.left--; *d.left == 0 {
		d.crash()
	}
}

func (d crashingDriver) Run(migration io.Reader) error {
	defer d.count()
	return d.migrationDriver.Run(migration)
}

func (d crashingDriver) SetVersion(version int, dirty bool) error {
	defer d.count()
	return d.migrationDriver.SetVersion(version, dirty)
}

// TestMigrate_ServerKilled kills MariaDB after every change of the last `migrate up`, and in a
// thorough run also of the last `down`. Afterwards `up` must complete the migration, `down` must
// revert it, and tokens must work. A server whose files are in /dev/shm loses nothing.
// TestDropEmptySequence does not depend on that.
func TestMigrate_ServerKilled(t *testing.T) {
	t.Parallel()
	latest, err := migrations.Latest(string(sqltx.MySQL))
	if err != nil {
		t.Fatal(err)
	}
	lowest, verbs, mends := latest-1, []string{"up"}, []string{"up"}
	if testenv.Thorough() {
		verbs, mends = []string{"down", "up"}, []string{"up", "down"}
	}
	server := testenv.OwnMariaDB(t)
	s := migrated(t, server.URL())
	fresh, sound := shape(t, s), s.migrations
	migrate := map[string]func() error{
		"up": func() error { return s.MigrateUp(t.Context()) },
		"down": func() (err error) {
			for version := latest; version > lowest && err == nil; version-- {
				err = s.MigrateDown(t.Context())
			}
			return err
		},
	}
	for _, verb := range verbs {
		for _, mend := range mends {
			for n, crashed := 1, true; crashed; n++ {
				if verb == "up" {
					migrateDownTo(t, s, lowest)
				}
				left := n
				s.migrations = func(ctx context.Context) (migrationDriver, error) {
					driver, err := sound(ctx)
					return crashingDriver{driver, &left, server.Kill}, err
				}
				err := migrate[verb]()
				s.migrations = sound
				if crashed = left <= 0; crashed {
					server.Restart()
				} else if err != nil {
					t.Fatal(err)
				}
				when := fmt.Sprintf("%s, MariaDB killed after change %d, then %s", verb, n, mend)
				if mend == "down" {
					if err := s.MigrateDown(t.Context()); err != nil {
						t.Errorf("%s: %v", when, err)
					}
				}
				if err := s.MigrateUp(t.Context()); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				checkVersion(t, s, latest)
				if got := shape(t, s); !slices.Equal(got, fresh) {
					t.Errorf("%s: the schema differs from a fresh one:\n%q\nwant\n%q", when, got, fresh)
				}
				if _, err := s.LedgerID(t.Context()); err != nil {
					t.Errorf("%s: %v", when, err)
				}
				var token int64
				if err := s.pool.QueryRowContext(t.Context(), "SELECT NEXTVAL(fencing_tokens)").Scan(&token); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
		}
	}
}

// TestDropEmptySequence reads a sequence of a server that answers with an error. Only the error of
// a sequence without its row may cause a drop.
func TestDropEmptySequence(t *testing.T) {
	t.Parallel()
	for number, dropped := range map[uint16]bool{1032: true, 1142: false} {
		answer := &mysql.MySQLError{Number: number}
		pool := sql.OpenDB(refusing{answer})
		defer pool.Close()
		var ran textRecorder
		found := schema{"fencing_tokens": true}
		d := &stepDriver{migrationDriver: &ran, sql: &SQL{pool: pool}}
		if err := d.dropEmptySequence(t.Context(), found); (err == nil) != dropped || err != nil && !errors.Is(err, answer) {
			t.Errorf("error %d: got %v", number, err)
		}
		if got := ran.text == "DROP TABLE fencing_tokens"; got != dropped || found["fencing_tokens"] == dropped {
			t.Errorf("error %d: ran %q, and it is found: %v", number, ran.text, found["fencing_tokens"])
		}
	}
}

// refusing is a database that answers every connection with the error.
type refusing struct{ err error }

func (r refusing) Connect(context.Context) (driver.Conn, error) { return nil, r.err }
func (refusing) Driver() driver.Driver                          { return nil }

// textRecorder is a driver that only records statements.
type textRecorder struct {
	migrationDriver
	text string
}

func (r *textRecorder) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	r.text = string(text)
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
