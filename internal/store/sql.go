package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

// Bounds of every session with the ledger's database. A lock wait is longer than an idle
// transaction may last. So a stopped instance delays each of the others once, and causes no error.
const (
	lockWait        = 3 * time.Second // wait for a row lock
	idleTransaction = 2 * time.Second // after this time, the server ends the session
	ioTimeout       = 10 * time.Second
	longStatement   = 5 * time.Minute // see LongStatements
	connectTimeout  = 5 * time.Second
	poolSize        = 32
	connectionLife  = 30 * time.Minute
	connectionIdle  = 5 * time.Minute
)

// SQL is the ledger's database. It is safe for concurrent use.
type SQL struct {
	db         *gorm.DB
	pool       *sql.DB
	dialect    sqltx.Dialect
	engine     sqlEngine
	version    string // text of version(); empty for SQLite
	commitsDDL bool   // it commits each change of tables on its own
	target     string // name of the database in error messages
	pooled     bool   // a pooler stands between PostgreSQL and this process
	// unsynced means that the URL lets SQLite commit before the disk has the commit.
	unsynced bool
	// migrations opens a migration driver on a separate connection without the sessions' bounds.
	// The connection is closed when ctx ends.
	migrations func(ctx context.Context) (migrationDriver, error)
	silence    time.Duration // normally migrationSilence
}

// OpenSQL connects to the database at the URL:
//
//	mysql://user:password@host:port/name?parameter=value
//	postgres://user:password@host:port/name?parameter=value
//	sqlite:///path/to/file?_pragma=name(value)
//
// The URL may have several hosts, separated by commas. Each new connection uses the first one that
// accepts writes.
//
// User, password, host and name are percent-decoded. The query goes to the driver; for MySQL it
// names driver parameters and session variables. It overrides the bounds set here, but not the
// settings on which reading our own rows depends. A missing SQLite file is created, and only its
// owner can read it.
//
// Sessions run at READ COMMITTED. A lock wait is bounded to 3 s, an idle transaction to 2 s, and a
// silent connection to 10 s. MySQL has no bound for idle transactions, and ends a session that is
// silent for 10 s. There are at most 32 connections (4 to SQLite). The first must be established
// within 5 s.
//
// Errors name the host and the problem, never the password. An invalid URL gives ErrBadURL.
func OpenSQL(ctx context.Context, rawURL string) (*SQL, error) {
	u, hosts, err := parseDatabase(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var s *SQL
	switch u.Scheme {
	case "mysql":
		s, err = openMySQL(ctx, u, hosts)
	case "postgres", "postgresql":
		s, err = openPostgres(ctx, rawURL)
	case "sqlite":
		s, err = openSQLiteURL(ctx, u)
	default:
		err = unknownScheme(u)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: no answer within %v", err, connectTimeout)
	}
	return s, err
}

// parseDatabase parses the URL of a database, which may have several hosts. The returned URL has
// only the first host.
func parseDatabase(rawURL string) (u *url.URL, hosts []string, err error) {
	if !strings.Contains(rawURL, "://") { // unknownScheme explains the error
		u, err = parseURL(rawURL)
		return u, nil, err
	}
	return parseHosts(rawURL)
}

// hostTimeout bounds the time in which one of n hosts must accept a connection. Opening a database
// connects twice, and tries all hosts in turn within connectTimeout.
func hostTimeout(n int) time.Duration {
	if n == 1 {
		return connectTimeout
	}
	return connectTimeout / time.Duration(2*n)
}

func unknownScheme(u *url.URL) error {
	if u.Scheme == "" {
		return fmt.Errorf("%w: it has no scheme: use mysql://, postgres:// or sqlite://", ErrBadURL)
	}
	return fmt.Errorf("%w: %q is none of mysql://, postgres://, sqlite://", ErrBadURL, u.Scheme+"://")
}

// CheckSQL returns ErrBadURL if OpenSQL cannot use the URL. It does not connect.
func CheckSQL(rawURL string) error {
	u, hosts, err := parseDatabase(rawURL)
	if err == nil {
		switch u.Scheme {
		case "mysql":
			_, err = mysqlConfig(u, hosts)
		case "postgres", "postgresql":
			_, err = postgresConfig(rawURL)
		case "sqlite":
			_, err = sqliteQuery(u)
		default:
			err = unknownScheme(u)
		}
	}
	if err != nil && !errors.Is(err, ErrBadURL) {
		err = fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	return err
}

// OpenSQLToInspect is OpenSQL for a command that changes nothing: it opens a SQLite file read-only.
// It returns fs.ErrNotExist if there is no such file.
func OpenSQLToInspect(ctx context.Context, rawURL string) (*SQL, error) {
	if u, err := parseURL(rawURL); err == nil && u.Scheme == "sqlite" {
		return inspectedSQLite(ctx, u)
	}
	return OpenSQL(ctx, rawURL)
}

// CheckFile returns an error if the URL names a SQLite file that does not exist. The error wraps
// fs.ErrNotExist. Commands that are useless without the file call CheckFile, because OpenSQL would
// create it.
func CheckFile(rawURL string) error {
	if u, err := parseURL(rawURL); err == nil && u.Scheme == "sqlite" { // OpenSQL reports errors of the URL
		if _, err := os.Stat(u.Path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("opening SQLite file %s: %w", u.Path, fileProblem(u.Path, err))
		}
	}
	return nil
}

// LongStatements returns the URL of a database with a bound of five minutes for a
// statement, for a command that reads large tables. It keeps a bound that the URL
// sets. Other bounds stay as OpenSQL says.
func LongStatements(rawURL string) string {
	scheme, _, _ := strings.Cut(rawURL, "://")
	var name, value string
	switch scheme {
	case "mysql":
		name, value = "readTimeout", longStatement.String()
	case "postgres", "postgresql":
		name, value = "statement_timeout", milliseconds(longStatement)
	default:
		return rawURL
	}
	separator := "?"
	if _, query, found := strings.Cut(rawURL, "?"); found {
		if strings.Contains("&"+query, "&"+name+"=") {
			return rawURL
		}
		separator = "&"
	}
	return rawURL + separator + name + "=" + value
}

// open finishes opening: it bounds the pool, proves that the database answers
// and hands the pool to gorm.
func (s *SQL) open(ctx context.Context, size int, dialector gorm.Dialector) (*SQL, error) {
	s.pool.SetMaxOpenConns(size)
	s.pool.SetMaxIdleConns(size)
	s.pool.SetConnMaxLifetime(connectionLife)
	s.pool.SetConnMaxIdleTime(connectionIdle)
	s.silence = migrationSilence
	// Processes that open a new SQLite file at the same time all switch it to a write-ahead log.
	// SQLite answers BUSY to all but one of them without waiting.
	err := awaitAnswer(ctx, s.pool.PingContext, sqltx.IsRetryable)
	if err == nil {
		s.db, err = gorm.Open(dialector, &gorm.Config{
			DisableAutomaticPing: true,
			Logger:               sqltx.SlowLog(slog.Default()),
		})
	}
	if err != nil {
		s.pool.Close()
		return nil, s.failed("connecting to", err)
	}
	return s, nil
}

// awaitAnswer pings a server until it answers, or fails with an error that does not pass.
func awaitAnswer(ctx context.Context, ping func(context.Context) error, passes func(error) bool) error {
	for try := 1; ; try++ {
		err := ping(ctx)
		if err == nil || !passes(err) || retry.Sleep(ctx, retry.Jitter(10*time.Millisecond, try)) != nil {
			return err
		}
	}
}

func (s *SQL) failed(doing string, err error) error {
	return fmt.Errorf("%s %s: %w", doing, s.target, err)
}

// DB returns the pool as gorm wraps it. It has no prepared statements; statements are logged only
// if they take over 1 s.
func (s *SQL) DB() *gorm.DB { return s.db }

// Pool returns the pool of connections, for its statistics.
func (s *SQL) Pool() *sql.DB { return s.pool }

// Ledger returns the database as the ledger uses it.
func (s *SQL) Ledger() *sqltx.DB { return sqltx.New(s.db, s.dialect).Without(s.engine.lacks) }

// Dialect returns the kind of database.
func (s *SQL) Dialect() sqltx.Dialect { return s.dialect }

// Close closes all connections.
func (s *SQL) Close() error {
	if err := s.pool.Close(); err != nil {
		return s.failed("closing", err)
	}
	return nil
}

// Target describes the database that the pool is connected to, without secrets.
func (s *SQL) Target() string { return s.target }

// LedgerID returns the ID that the migration gave this ledger. The keys of a gate
// contain it, so that counts of another ledger are not used.
func (s *SQL) LedgerID(ctx context.Context) (uuid.UUID, error) {
	ids, err := sqltx.ReadAll(ctx, s.Ledger(), func(id *uuid.UUID) []any { return []any{id} }, "SELECT id FROM ledger")
	if err != nil {
		return uuid.Nil, s.failed("reading the ledger ID from", err)
	}
	if len(ids) != 1 {
		return uuid.Nil, s.failed("reading the ledger ID from", fmt.Errorf("table ledger has %d rows, not 1", len(ids)))
	}
	return ids[0], nil
}

// LogTo sends slow statements to log instead of slog's default logger. Call it before the pool is
// used.
func (s *SQL) LogTo(log *slog.Logger) { s.db.Logger = sqltx.SlowLog(log) }
