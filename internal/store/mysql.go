package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4/database"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	"gorm.io/driver/mysql"
)

func openMySQL(ctx context.Context, u *url.URL) (*SQL, error) {
	config, err := mysqlConfig(u)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	s := &SQL{dialect: MySQL, target: "MySQL at " + config.Addr}
	version, err := mysqlVersion(ctx, config)
	if err != nil {
		return nil, s.failed("connecting to", err)
	}
	s.migrations = func() (database.Driver, error) { return mysqlMigrations(config) }

	stateMySQL(config, version)
	sessions := config.Clone()
	idle := boundMySQL(sessions, version)
	connector, err := driver.NewConnector(sessions)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	s.pool = sql.OpenDB(mysqlConnector{Connector: connector, texts: sessions.InterpolateParams})
	s, err = s.open(ctx, poolSize, mysql.New(mysql.Config{
		Conn:                      pool{DB: s.pool, exec: execMySQL, begin: "START TRANSACTION", guard: mysqlGuard, guarded: mysqlGuarded},
		SkipInitializeWithVersion: true, // it only chooses among clauses that the ledger's own SQL does not use
	}))
	if err != nil {
		return nil, err
	}
	s.pool.SetConnMaxIdleTime(idle)
	return s, nil
}

// mysqlConfig turns the URL into the driver's configuration, without bounds.
func mysqlConfig(u *url.URL) (*driver.Config, error) {
	if u.Hostname() == "" {
		return nil, errors.New("it names no host")
	}
	name := strings.TrimPrefix(u.Path, "/")
	if name == "" {
		return nil, errors.New("it names no database")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("its query cannot be parsed")
	}
	// Rows are read and written as UTC times, and a row found counts as
	// updated; nobody's query may change that.
	for _, ours := range []string{"parseTime", "loc", "clientFoundRows"} {
		query.Del(ours)
	}
	for ours := range mysqlState {
		query.Del(ours)
	}
	config, err := driver.ParseDSN("/?" + query.Encode())
	if err != nil {
		return nil, fmt.Errorf("its query: %w", err)
	}
	config.Logger = &driver.NopLogger{} // what it would log comes back as an error too
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.Net = "tcp"
	config.Addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306"))
	config.DBName = name
	config.ParseTime = true
	config.Loc = time.UTC
	config.ClientFoundRows = true
	if !query.Has("interpolateParams") {
		config.InterpolateParams = true // one round trip a statement instead of three
	}
	if !query.Has("timeout") {
		config.Timeout = connectTimeout
	}
	if config.TLS != nil && config.TLS.ServerName == "" {
		config.TLS.ServerName = u.Hostname() // ParseDSN took it from the address it did not have yet
	}
	return config, nil
}

// mysqlVersion asks the server what it is, since MariaDB and MySQL name the
// same bounds differently and refuse each other's names.
func mysqlVersion(ctx context.Context, config *driver.Config) (string, error) {
	probe := config.Clone()
	probe.Params = nil
	probe.ReadTimeout, probe.WriteTimeout = connectTimeout, connectTimeout
	connector, err := driver.NewConnector(probe)
	if err != nil {
		return "", err
	}
	pool := sql.OpenDB(connector)
	defer pool.Close()
	var version string
	err = pool.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	return version, err
}

// mysqlState is what every session relies on and no URL changes, whatever the
// server's global variables say: a statement outside a transaction commits by
// itself, a COMMIT begins no other transaction, a SELECT returns all its rows,
// and keys are checked.
var mysqlState = map[string]string{
	"autocommit":         "1",
	"completion_type":    "'NO_CHAIN'",
	"sql_select_limit":   "18446744073709551615",
	"sql_safe_updates":   "0",
	"unique_checks":      "1",
	"foreign_key_checks": "1",
}

// mysqlMode is the sql_mode unless the URL names another. In some modes text
// means something else: ORACLE refuses BEGIN and takes the empty string for NULL.
const mysqlMode = "'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"

// stateMySQL has the sessions, those of migrations too, state what they rely on.
func stateMySQL(config *driver.Config, version string) {
	if config.Params == nil {
		config.Params = make(map[string]string)
	}
	maps.Copy(config.Params, mysqlState)
	if isMariaDB(version) {
		config.Params["check_constraint_checks"] = "1"
	}
	setDefault(config, "sql_mode", mysqlMode)
}

func setDefault(config *driver.Config, name, value string) {
	if _, ok := config.Params[name]; !ok {
		config.Params[name] = value
	}
}

func isMariaDB(version string) bool { return strings.Contains(version, "MariaDB") }

// boundMySQL bounds the sessions, where the URL has not, and returns how long
// a connection may lie idle in the pool.
func boundMySQL(config *driver.Config, version string) (idle time.Duration) {
	if config.ReadTimeout == 0 {
		config.ReadTimeout = silence
	}
	if config.WriteTimeout == 0 {
		config.WriteTimeout = silence
	}
	config.MultiStatements = config.InterpolateParams // nobody's text is part of a statement
	set := func(name, value string) { setDefault(config, name, value) }
	set("innodb_lock_wait_timeout", wholeSeconds(lockWait))
	// All text of the ledger is ASCII, columns and values: the server need not
	// convert it.
	set("character_set_client", "ascii")
	set("collation_connection", "ascii_bin") // and the charset with it
	if isMariaDB(version) {
		set("tx_isolation", "'READ-COMMITTED'")
		set("idle_transaction_timeout", wholeSeconds(idleTransaction))
		return connectionIdle
	}
	set("transaction_isolation", "'READ-COMMITTED'")
	// MySQL cannot tell an idle transaction from an idle session, so both end
	// early, and the pool lets go before the server does.
	set("wait_timeout", wholeSeconds(silence))
	return silence / 2
}

// mysqlGuard overflows where it should fail: that is an error in every
// sql_mode, and ends the text of statements that it is in.
func mysqlGuard(rows int64) Guard {
	return func(value string) string { return fmt.Sprintf("IF(ROW_COUNT() = %d, %s, ~0 + 1)", rows, value) }
}

func mysqlGuarded(err error) bool {
	var e *driver.MySQLError
	return errors.As(err, &e) && e.Number == mysqlOutOfRange
}

func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

func mysqlMigrations(config *driver.Config) (database.Driver, error) {
	own := config.Clone()
	own.MultiStatements = true
	connector, err := driver.NewConnector(own)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	migrations, err := migratemysql.WithInstance(pool, &migratemysql.Config{})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return migrations, nil
}
