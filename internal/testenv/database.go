package testenv

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	_ "github.com/go-sql-driver/mysql" // registers the driver "mysql" of database/sql
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver "pgx" of database/sql
)

// The programs of the database servers.
var (
	mariadbd        = dependency{"mariadbd", "mariadb-server", "HOLDFAST_TEST_MYSQL"}
	mariadbInstall  = dependency{"mariadb-install-db", "mariadb-server", "HOLDFAST_TEST_MYSQL"}
	postgres        = dependency{"postgres", "postgresql", "HOLDFAST_TEST_POSTGRES"}
	initdb          = dependency{"initdb", "postgresql", "HOLDFAST_TEST_POSTGRES"}
	postgresFolders = "/usr/lib/postgresql/*/bin"
)

// postgres18Folders are the folders where scripts/test-servers.sh or a distribution installs
// PostgreSQL 18.
var postgres18Folders = []string{"/usr/local/lib/postgresql/18/bin", "/usr/lib/postgresql/18/bin"}

// postgresBuild is a PostgreSQL of some version.
type postgresBuild struct {
	kind     string // part of the names of its data folders
	programs func(dependency) (path string, err error)
}

var (
	postgresDefault = postgresBuild{"postgres", func(d dependency) (string, error) { return lookPath(d, postgresFolders) }}
	postgres18      = postgresBuild{"postgres18", func(d dependency) (string, error) {
		if path, ok := lookIn(d.file, postgres18Folders...); ok {
			return path, nil
		}
		return "", &missingError{dependency{d.file + " of PostgreSQL 18", "", "HOLDFAST_TEST_POSTGRES_18"}}
	}}
)

// MariaDB returns the URL of a new, empty database on a server that all tests of
// the process share. The server does not wait for the disk.
func MariaDB(t T) string {
	t.Helper()
	return freshDatabase(t, "MariaDB", "HOLDFAST_TEST_MYSQL", func() (*DatabaseServer, error) {
		return startMariaDB("--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0")
	})
}

// Postgres returns the URL of a new, empty database on a server that all tests of
// the process share. The server does not wait for the disk.
func Postgres(t T) string {
	t.Helper()
	return freshDatabase(t, "PostgreSQL", "HOLDFAST_TEST_POSTGRES", func() (*DatabaseServer, error) {
		return postgresDefault.start(withoutDisk...)
	})
}

// Postgres18 is Postgres on PostgreSQL 18.
func Postgres18(t T) string {
	t.Helper()
	return freshDatabase(t, "PostgreSQL 18", "HOLDFAST_TEST_POSTGRES_18", func() (*DatabaseServer, error) {
		return postgres18.start(withoutDisk...)
	})
}

// withoutDisk are the arguments of a PostgreSQL that does not wait for the disk.
var withoutDisk = []string{"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"}

// SQLite returns the URL of a database file that does not exist yet, in a new
// folder.
func SQLite(t T) string {
	t.Helper()
	folder, err := env.newFolder("sqlite")
	check(t, "SQLite", err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	return "sqlite://" + filepath.Join(folder, "ledger.db")
}

// Database is a kind of database that a ledger can use.
type Database struct {
	Name string           // name of the subtests
	URL  func(t T) string // returns the URL of a new, empty database
}

// Patient returns the URL with a longer bound for idle transactions. Use it if the test pauses
// inside a transaction: on a busy machine the pause may be long.
func Patient(t T, dbURL string) string {
	t.Helper()
	u, err := url.Parse(dbURL)
	check(t, "the URL of a database", err)
	query := u.Query()
	switch u.Scheme {
	case "mysql":
		query.Set("idle_transaction_timeout", "20")
	case "postgres":
		query.Set("idle_in_transaction_session_timeout", "20s")
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// NetworkDatabases returns the kinds of database that clients reach over a network.
func NetworkDatabases() []Database {
	return []Database{{"MariaDB", MariaDB}, {"PostgreSQL", Postgres}}
}

// Databases returns all kinds of database: the network databases, then SQLite.
func Databases() []Database {
	return append(NetworkDatabases(), Database{"SQLite", SQLite})
}

// Chosen returns the databases of these names, or all of them in a thorough run. Use it in a test
// if other tests make the same calls on the databases that it leaves out.
func Chosen(all []Database, names ...string) []Database {
	if Thorough() {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(d Database) bool { return !slices.Contains(names, d.Name) })
}

// AllVersions returns these kinds of database, which must include PostgreSQL. In a thorough run it
// adds PostgreSQL 18. It is for tests of what a database must do for the ledger.
func AllVersions(kinds []Database) []Database {
	if !Thorough() {
		return kinds
	}
	return append(kinds, Database{"PostgreSQL 18", Postgres18})
}

// freshDatabase creates a database on the shared server, or on the server that the variable names.
// If the variable names a server, freshDatabase drops the database when the test ends.
func freshDatabase(t T, kind, variable string, start func() (*DatabaseServer, error)) string {
	t.Helper()
	if admin := os.Getenv(variable); admin != "" {
		dbURL, err := createDatabase(admin)
		check(t, kind, err)
		t.Cleanup(func() {
			if err := dropDatabase(admin, dbURL); err != nil {
				t.Logf("dropping the database of the test: %v", err)
			}
		})
		return dbURL
	}
	server, err := shared(&env, kind, start)
	check(t, kind, err)
	dbURL, err := createDatabase(server.admin)
	check(t, kind, err)
	return dbURL
}

// DatabaseServer is a MariaDB or PostgreSQL server. Its data survives Kill and
// Restart.
type DatabaseServer struct {
	Server
	admin string // URL of the administrator, without a database
	url   string
}

// OwnMariaDB starts a MariaDB for this test, with its default durability and
// these additional arguments.
func OwnMariaDB(t T, args ...string) *DatabaseServer {
	t.Helper()
	return startOwn(t, "MariaDB", startMariaDB, args)
}

// OwnPostgres starts a PostgreSQL for this test, with its default durability and
// these additional arguments.
func OwnPostgres(t T, args ...string) *DatabaseServer {
	t.Helper()
	return startOwn(t, "PostgreSQL", postgresDefault.start, args)
}

// OwnPostgres18 is OwnPostgres with PostgreSQL 18.
func OwnPostgres18(t T, args ...string) *DatabaseServer {
	t.Helper()
	return startOwn(t, "PostgreSQL 18", postgres18.start, args)
}

// startOwn starts a database server that ends with the test.
func startOwn(t T, kind string, start func(args ...string) (*DatabaseServer, error), args []string) *DatabaseServer {
	t.Helper()
	s := own(t, kind, func() (*DatabaseServer, error) { return start(args...) })
	var err error
	s.url, err = createDatabase(s.admin)
	check(t, kind, err)
	return s
}

// URL returns the URL of a database on the server, for the flag --db.
func (s *DatabaseServer) URL() string { return s.url }

// NewDatabase creates another, empty database on the running server and returns
// its URL.
func (s *DatabaseServer) NewDatabase() string {
	dbURL, err := createDatabase(s.admin)
	must(err)
	return dbURL
}

// startMariaDB starts a MariaDB with a new data folder.
func startMariaDB(args ...string) (*DatabaseServer, error) {
	path, err := lookPath(mariadbd)
	if err != nil {
		return nil, err
	}
	install, err := lookPath(mariadbInstall)
	if err != nil {
		return nil, err
	}
	owner, err := ownerFor("mysql")
	if err != nil {
		return nil, err
	}
	folder, port, err := databasePlace("mariadb", owner, func(data string) *exec.Cmd {
		args := []string{"--no-defaults", "--datadir=" + data, "--auth-root-authentication-method=normal", "--skip-test-db"}
		if owner != nil {
			args = append(args, "--user=mysql")
		}
		return exec.Command(install, args...)
	})
	if err != nil {
		return nil, err
	}
	args = append([]string{
		path, "--no-defaults", "--datadir=" + filepath.Join(folder, "data"), "--socket=" + filepath.Join(folder, "s"),
		"--pid-file=" + filepath.Join(folder, "pid"),
		fmt.Sprintf("--port=%d", port.number), "--bind-address=127.0.0.1", "--tmpdir=" + folder, "--skip-name-resolve",
		"--character-set-server=utf8mb4", "--max-connections=400",
	}, args...)
	s := &DatabaseServer{
		Server: newServer("MariaDB", folder, args, port), admin: "mysql://root@" + port.addr(),
	}
	s.process.owner = owner
	s.answers = func(ctx context.Context) error { return onDatabase(ctx, s.admin, "SELECT 1") }
	return s, s.start()
}

func (b postgresBuild) start(args ...string) (*DatabaseServer, error) {
	path, err := b.programs(postgres)
	if err != nil {
		return nil, err
	}
	install, err := b.programs(initdb)
	if err != nil {
		return nil, err
	}
	owner, err := ownerFor("postgres")
	if err != nil {
		return nil, err
	}
	folder, port, err := databasePlace(b.kind, owner, func(data string) *exec.Cmd {
		return exec.Command(install, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	})
	if err != nil {
		return nil, err
	}
	s := newPostgres(path, folder, port, owner, args...)
	return s, s.start()
}

// newPostgres returns the server of the program with the data in the folder. It does not
// start it.
func newPostgres(path, folder string, port *port, owner *owner, args ...string) *DatabaseServer {
	args = append([]string{
		path, "-D", filepath.Join(folder, "data"), "-c", "listen_addresses=127.0.0.1", "-c", fmt.Sprintf("port=%d", port.number),
		"-c", "unix_socket_directories=" + folder, "-c", "max_connections=400",
		"-c", "dynamic_shared_memory_type=mmap", // in the data folder, because in /dev/shm a killed server would leave it behind
	}, args...)
	s := &DatabaseServer{
		Server: newServer("PostgreSQL", folder, args, port), admin: "postgres://postgres@" + port.addr(),
	}
	s.process.owner = owner
	s.process.endSignal = syscall.SIGINT // after SIGKILL its children would keep running
	s.answers = func(ctx context.Context) error { return onDatabase(ctx, s.admin, "SELECT 1") }
	return s
}

// databasePlace is newPlace with a new data folder, which is a copy of the template. Creating a
// data folder from scratch takes seconds.
func databasePlace(kind string, owner *owner, install func(data string) *exec.Cmd) (folder string, p *port, err error) {
	template, err := templateFolder(kind, owner, install)
	if err != nil {
		return "", nil, err
	}
	if folder, p, err = env.newPlace(kind, owner); err != nil {
		return "", nil, err
	}
	return folder, p, copyTree(filepath.Join(template, "data"), filepath.Join(folder, "data"))
}

// templateFolder returns the folder with the template. All test processes share
// it; the first one creates it.
func templateFolder(kind string, owner *owner, install func(data string) *exec.Cmd) (string, error) {
	template := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-template-%s-%d", kind, os.Getuid()))
	unlock, err := lockFile(template + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	stamp := filepath.Join(template, "complete")
	if _, err := os.Stat(stamp); err == nil {
		return template, nil
	}
	if err := os.RemoveAll(template); err != nil {
		return "", err
	}
	if err := os.Mkdir(template, 0o755); err != nil {
		return "", err
	}
	if err := owner.chown(template); err != nil {
		return "", err
	}
	cmd := install(filepath.Join(template, "data"))
	cmd.Dir = "/"
	cmd.SysProcAttr = owner.attributes()
	if kind == "mariadb" {
		cmd.SysProcAttr.Credential = nil // the program changes its user itself
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd.Path, err, out)
	}
	return template, os.WriteFile(stamp, nil, 0o600)
}

// lockFile waits for the exclusive lock on the file.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// copyTree copies a folder with the owners of its files. Most of a database's log is
// zeros; a sparse copy does not write them.
func copyTree(from, to string) error {
	args := []string{"-a", from, to}
	if runtime.GOOS == "linux" {
		args = append([]string{"--sparse=always"}, args...)
	}
	if out, err := exec.Command("cp", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w: %s", from, err, out)
	}
	return nil
}

// databases counts the databases that this process has created, for their names.
var databases atomic.Int64

func createDatabase(admin string) (string, error) {
	name := fmt.Sprintf("holdfast_test_%d_%d", os.Getpid(), databases.Add(1))
	if err := onDatabase(context.Background(), admin, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	u, err := url.Parse(admin)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	if u.Scheme != "mysql" && u.RawQuery == "" {
		u.RawQuery = "sslmode=disable"
	}
	return u.String(), nil
}

func dropDatabase(admin, dbURL string) error {
	u, err := url.Parse(dbURL)
	if err != nil {
		return err
	}
	drop := "DROP DATABASE " + strings.TrimPrefix(u.Path, "/")
	if u.Scheme != "mysql" {
		drop += " WITH (FORCE)"
	}
	return onDatabase(context.Background(), admin, drop)
}

// onDatabase runs one statement on the server at the URL, for at most Patience.
func onDatabase(ctx context.Context, admin, statement string) error {
	driver, source, err := DataSource(admin)
	if err != nil {
		return err
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// DataSource returns the driver of database/sql for the URL of a database, and the URL in the
// driver's notation.
func DataSource(dbURL string) (driver, source string, err error) {
	u, err := url.Parse(dbURL)
	if err != nil {
		return "", "", err
	}
	if u.Scheme != "mysql" {
		if u.RawQuery == "" {
			u.RawQuery = "sslmode=disable"
		}
		if u.Path == "" {
			u.Path = "/postgres"
		}
		return "pgx", u.String(), nil
	}
	user := u.User.Username()
	if password, ok := u.User.Password(); ok {
		user += ":" + password
	}
	return "mysql", fmt.Sprintf("%s@tcp(%s)/%s", user, u.Host, strings.TrimPrefix(u.Path, "/")), nil
}
