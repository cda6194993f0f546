package store

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
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

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

func openMySQL(ctx context.Context, u *url.URL, hosts []string) (*SQL, error) {
	config, err := mysqlConfig(u, hosts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	s := &SQL{dialect: sqltx.MySQL, commitsDDL: true, target: "MySQL at " + config.Addr}
	version, err := mysqlVersion(ctx, config)
	if err != nil {
		return nil, s.failed("connecting to", err)
	}
	s.engine, s.version = recogniseSQL(sqltx.MySQL, version), version
	s.migrations = func(ctx context.Context) (migrationDriver, error) { return mysqlMigrations(ctx, config, version) }

	setMySQLState(config, version)
	sessions := config.Clone()
	idle := setMySQLBounds(sessions, version)
	connector, err := mysqlConnector(sessions)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	s.pool = sql.OpenDB(sqltx.MySQLConnector(connector, sessions.InterpolateParams))
	s, err = s.open(ctx, poolSize, mysql.New(mysql.Config{
		Conn:                      sqltx.MySQLPool(s.pool),
		SkipInitializeWithVersion: true, // the version only affects clauses that the ledger's SQL does not use
	}))
	if err != nil {
		return nil, err
	}
	s.pool.SetConnMaxIdleTime(idle)
	return s, nil
}

// mysqlConfig returns the URL's configuration, without bounds, for mysqlConnector. Its
// address is a list if there are several hosts.
func mysqlConfig(u *url.URL, hosts []string) (*driver.Config, error) {
	if u.Hostname() == "" {
		return nil, errors.New("it names no host")
	}
	addrs, err := addresses(hosts, "3306")
	if err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(u.Path, "/")
	if name == "" {
		return nil, errors.New("it names no database")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("its query cannot be parsed")
	}
	// The service relies on UTC times, and on row counts that include rows which
	// an UPDATE found but did not change. The URL cannot override this.
	for _, fixed := range []string{"parseTime", "loc", "clientFoundRows"} {
		query.Del(fixed)
	}
	for fixed := range mysqlState {
		query.Del(fixed)
	}
	config, err := driver.ParseDSN("/?" + query.Encode())
	if err != nil {
		return nil, fmt.Errorf("its query cannot be used: %w", err)
	}
	config.Logger = &driver.NopLogger{} // the driver also returns the errors that it logs
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.Net = "tcp"
	config.Addr = strings.Join(addrs, ",")
	config.DBName = name
	config.ParseTime = true
	config.Loc = time.UTC
	config.ClientFoundRows = true
	if !query.Has("interpolateParams") {
		config.InterpolateParams = true // one round trip for each statement instead of three
	}
	if !query.Has("timeout") {
		config.Timeout = hostTimeout(len(addrs))
	}
	return config, nil
}

// mysqlConnector returns a connector to the host of the configuration, or to the first of
// its hosts that accepts writes.
func mysqlConnector(config *driver.Config) (sqldriver.Connector, error) {
	var hosts []sqltx.MySQLHost
	for _, one := range mysqlHosts(config) {
		connector, err := driver.NewConnector(one)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, sqltx.MySQLHost{Address: one.Addr, Connector: connector})
	}
	if len(hosts) == 1 {
		return hosts[0].Connector, nil
	}
	return sqltx.MySQLPrimary(cmp.Or(config.Timeout, connectTimeout), hosts), nil
}

// mysqlHosts returns a configuration for each host.
func mysqlHosts(config *driver.Config) (hosts []*driver.Config) {
	addrs := strings.Split(config.Addr, ",")
	for _, addr := range addrs {
		one := config.Clone()
		one.Addr = addr
		if one.TLS != nil {
			one.TLS.ServerName, _, _ = net.SplitHostPort(addr) // ParseDSN has not seen this host's address
		}
		// A statement that a read-only server refuses ends its session. The next session is then
		// opened on the primary.
		one.RejectReadOnly = one.RejectReadOnly || len(addrs) > 1
		hosts = append(hosts, one)
	}
	return hosts
}

// mysqlVersion reads the server's version. MariaDB and MySQL have different names for some
// session variables, and each refuses the other's names.
func mysqlVersion(ctx context.Context, config *driver.Config) (string, error) {
	probe := config.Clone()
	probe.Params = nil
	// ctx bounds the connection: a read timeout that ended first would hide its error.
	probe.ReadTimeout, probe.WriteTimeout = 0, 0
	connector, err := mysqlConnector(probe)
	if err != nil {
		return "", err
	}
	pool := sql.OpenDB(connector)
	defer pool.Close()
	var version string
	err = pool.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	return version, err
}

// mysqlState are the session variables that the service relies on. They override the server's
// global variables, and the URL cannot change them. With them, a statement outside a transaction
// commits at once, a COMMIT begins no new transaction, a SELECT returns all its rows, and keys are
// checked.
var mysqlState = map[string]string{
	"autocommit":         "1",
	"completion_type":    "'NO_CHAIN'",
	"sql_select_limit":   "18446744073709551615",
	"sql_safe_updates":   "0",
	"unique_checks":      "1",
	"foreign_key_checks": "1",
}

// mysqlMode is the sql_mode unless the URL sets another. Some modes change the
// meaning of SQL: ORACLE refuses BEGIN and treats the empty string as NULL.
const mysqlMode = "'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"

// setMySQLState sets the session variables that all sessions rely on, those of
// migrations included.
func setMySQLState(config *driver.Config, version string) {
	if config.Params == nil {
		config.Params = make(map[string]string)
	}
	maps.Copy(config.Params, mysqlState)
	if sqltx.IsMariaDB(version) {
		config.Params["check_constraint_checks"] = "1"
	}
	setDefault(config.Params, "sql_mode", mysqlMode)
}

// setDefault sets a parameter unless it is set.
func setDefault(parameters map[string]string, name, value string) {
	if _, set := parameters[name]; !set {
		parameters[name] = value
	}
}

// setMySQLBounds sets the bounds that the URL leaves unset. It returns how long a
// connection may stay idle in the pool.
func setMySQLBounds(config *driver.Config, version string) (idle time.Duration) {
	if config.ReadTimeout == 0 {
		config.ReadTimeout = ioTimeout
	}
	if config.WriteTimeout == 0 {
		config.WriteTimeout = ioTimeout
	}
	config.MultiStatements = config.InterpolateParams // safe, because no statement contains a caller's text
	set := func(name, value string) { setDefault(config.Params, name, value) }
	set("innodb_lock_wait_timeout", wholeSeconds(lockWait))
	if config.Params["innodb_lock_wait_timeout"] == "0" { // with 0, MariaDB fails a SKIP LOCKED that finds a locked row (error 1180 on 10.11)
		config.Params["innodb_lock_wait_timeout"] = "1"
	}
	// All columns and values of the ledger are ASCII text. With these settings the
	// server does not convert it.
	set("character_set_client", "ascii")
	set("collation_connection", "ascii_bin") // also sets character_set_connection
	if sqltx.IsMariaDB(version) {
		set("tx_isolation", "'READ-COMMITTED'")
		set("idle_transaction_timeout", wholeSeconds(idleTransaction))
		return connectionIdle
	}
	set("transaction_isolation", "'READ-COMMITTED'")
	// MySQL has no bound for idle transactions alone, so wait_timeout bounds all
	// idle sessions. The pool closes an idle connection before the server does.
	set("wait_timeout", wholeSeconds(ioTimeout))
	return ioTimeout / 2
}

func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// mysqlDriver is the library's driver on a separate connection.
type mysqlDriver struct {
	database.Driver
	pool *sql.DB
	conn *sql.Conn
}

func mysqlMigrations(ctx context.Context, config *driver.Config, version string) (migrationDriver, error) {
	config = config.Clone()
	config.ReadTimeout, config.WriteTimeout = 0, 0 // those of the URL are for short statements
	if sqltx.IsMariaDB(version) {
		config.Params["max_statement_time"] = "0" // MySQL has no such bound for changes of tables
	}
	config.DialFunc = closingWith(ctx, new(net.Dialer).DialContext)
	connector, err := mysqlConnector(config)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	d := &mysqlDriver{pool: pool, conn: conn}
	err = lockPatiently(func() (err error) { // Lock is needed to create the table of the version
		d.Driver, err = migratemysql.WithConnection(ctx, conn, &migratemysql.Config{})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close(), pool.Close())
	}
	return d, nil
}

func (d *mysqlDriver) Close() error { return errors.Join(d.Driver.Close(), d.pool.Close()) }

// hold locks the tables. The server unlocks them when SetVersion begins its transaction.
func (d *mysqlDriver) hold(ctx context.Context, tables []string) (rowReader, error) {
	_, err := d.conn.ExecContext(ctx, "LOCK TABLES "+strings.Join(tables, " WRITE, ")+" WRITE")
	return d.conn, err
}
