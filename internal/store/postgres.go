package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/driver/postgres"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

func openPostgres(ctx context.Context, rawURL string) (*SQL, error) {
	config, err := postgresConfig(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	if mode := config.DefaultQueryExecMode; mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol {
		return nil, fmt.Errorf("%w: default_query_exec_mode=%s cannot send the ledger's arrays: use cache_describe", ErrBadURL, mode)
	}
	s := &SQL{
		dialect:    sqltx.Postgres,
		target:     "PostgreSQL at " + strings.Join(postgresHosts(config), ","),
		migrations: func(ctx context.Context) (migrationDriver, error) { return postgresMigrations(ctx, config) },
	}

	sessions := config.Copy()
	for name, value := range postgresBounds {
		setDefault(sessions.RuntimeParams, name, value)
	}
	sessions.RuntimeParams["standard_conforming_strings"] = "on"
	sessions.DialFunc = boundAnswers(config.DialFunc, answerBound(sessions.RuntimeParams["statement_timeout"]))
	version, pooled, err := postgresVersion(ctx, sessions)
	if err != nil {
		return nil, s.failed("connecting to", poolerProblem(err))
	}
	if !pooled { // a pooler refuses unknown settings
		sessions.RuntimeParams["client_min_messages"] = "warning" // the server reports a commit on the primary alone as a warning
	}
	s.engine, s.version, s.pooled = recogniseSQL(sqltx.Postgres, version), version, pooled
	if pooled && config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// The pooler may run the next transaction on another session of the
		// server, where the prepared statement does not exist.
		sessions.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	s.pool = sql.OpenDB(sqltx.PostgresConnector(sessions))
	return s.open(ctx, poolSize, postgres.New(postgres.Config{Conn: sqltx.PostgresPool(s.pool)}))
}

// postgresConfig returns the URL's configuration, without bounds for its sessions.
func postgresConfig(rawURL string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(rawURL)
	if err != nil {
		return nil, postgresProblem(err)
	}
	if config.Database == "" {
		return nil, errors.New("it names no database")
	}
	hosts := postgresHosts(config)
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = hostTimeout(len(hosts))
	}
	if len(hosts) > 1 && config.ValidateConnect == nil {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	config.DialFunc = (&net.Dialer{Timeout: connectTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: ioTimeout / 2, Interval: ioTimeout / 10, Count: 5,
	}}).DialContext
	setDefault(config.RuntimeParams, "application_name", "holdfast")
	return config, nil
}

// postgresHosts returns the addresses that the driver tries.
func postgresHosts(config *pgx.ConnConfig) []string {
	hosts := []string{net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))}
	for _, other := range config.Fallbacks { // with sslmode=prefer, Fallbacks also lists each host without TLS
		hosts = append(hosts, net.JoinHostPort(other.Host, strconv.Itoa(int(other.Port))))
	}
	return slices.Compact(hosts)
}

// postgresBounds are the bounds of a session unless the URL sets others. Neither
// statement_timeout nor lock_timeout bounds a COMMIT.
var postgresBounds = map[string]string{
	"default_transaction_isolation":       "read committed",
	"lock_timeout":                        milliseconds(lockWait),
	"idle_in_transaction_session_timeout": milliseconds(idleTransaction),
	"statement_timeout":                   milliseconds(ioTimeout),
	"tcp_user_timeout":                    milliseconds(ioTimeout),
}

// postgresVersion connects once. It returns the text of version(), and whether a pooler stands
// between client and server. Behind a pooler, the process ID that the session reports differs from
// the one that the client received when it connected.
func postgresVersion(ctx context.Context, config *pgx.ConnConfig) (version string, pooled bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", false, err
	}
	defer conn.Close(ctx)
	var pid uint32
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid(), version()", pgx.QueryExecModeSimpleProtocol).Scan(&pid, &version)
	return version, pid != conn.PgConn().PID(), err
}

// poolerProblem adds advice to the error of a pooler that refuses the sessions'
// settings.
func poolerProblem(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != "08P01" || !strings.Contains(e.Message, "startup parameter") {
		return err
	}
	names := slices.Sorted(maps.Keys(postgresBounds))
	return fmt.Errorf("%w: the server is behind a pooler: set ignore_startup_parameters = %s in pgbouncer.ini, and set the same bounds with ALTER ROLE (docs/engines.md)",
		err, strings.Join(names, ","))
}

// postgresProblem returns the parser's error without the connection string that
// it quotes.
func postgresProblem(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return errors.New("one of its parameters cannot be used: " + inner.Error())
	}
	return errors.New("it cannot be parsed")
}

// answerBound returns how long a session waits for an answer, a little longer than the server may
// work on a statement. The server's bound is not enough, because it does not apply to a COMMIT or
// to a stopped server. 0 means no bound.
func answerBound(statementTimeout string) time.Duration {
	bound, err := postgresDuration(statementTimeout)
	switch {
	case err != nil: // the server reported the error
		return ioTimeout
	case bound <= 0:
		return 0
	}
	return bound + time.Second
}

// postgresDuration parses the value of a timeout: a number of milliseconds, or a number
// with a unit.
func postgresDuration(value string) (time.Duration, error) {
	value = strings.ReplaceAll(value, " ", "")
	if _, err := strconv.ParseFloat(value, 64); err == nil {
		value += "ms"
	}
	value = strings.Replace(value, "min", "m", 1)
	if days, ok := strings.CutSuffix(value, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		return time.Duration(n * float64(24*time.Hour)), err
	}
	return time.ParseDuration(value)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func postgresMigrations(ctx context.Context, config *pgx.ConnConfig) (migrationDriver, error) {
	config = config.Copy()
	config.DialFunc = closingWith(ctx, config.DialFunc)
	config.RuntimeParams["lock_timeout"] = milliseconds(migrationLockWait) // also bounds the wait for another process's migration
	config.RuntimeParams["statement_timeout"] = "0"
	pool := sql.OpenDB(sqltx.PostgresConnector(config))
	var schema sql.NullString // NULL: search_path names no schema
	err := pool.QueryRowContext(ctx, "SELECT CURRENT_SCHEMA()").Scan(&schema)
	if err == nil && !schema.Valid {
		err = errors.New("search_path names no schema that exists")
	}
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	// Use the lock of the migration library, so that older programs, which take it, wait too.
	lock, err := database.GenerateAdvisoryLockId(config.Database, schema.String, "schema_migrations")
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return newWholeDriver(pool, sqltx.Postgres,
		"LOCK TABLE %s IN ACCESS EXCLUSIVE MODE",
		"BEGIN ISOLATION LEVEL READ COMMITTED",
		// The server then ends the statement of a killed process soon, which nobody would commit.
		// PostgreSQL before 14 completes it first.
		"SELECT set_config(name, '1s', true) FROM pg_settings WHERE name = 'client_connection_check_interval'",
		"SELECT pg_advisory_xact_lock("+lock+")")
}
