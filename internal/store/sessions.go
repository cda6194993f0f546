package store

import (
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"net/url"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// OpenSessions returns a pool for sessions that hold locks, at a mysql:// or
// postgres:// URL as OpenSQL takes it. It does not connect yet. The sessions have
// none of the ledger's bounds, so each statement needs a context that ends. The pool
// keeps no idle connections: closing a connection ends its session.
//
// ErrBadURL: the URL is invalid, or names another database.
func OpenSessions(rawURL string) (*sql.DB, error) {
	connector, err := sessionConnector(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxIdleConns(-1)
	return pool, nil
}

func sessionConnector(rawURL string) (sqldriver.Connector, error) {
	u, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "mysql":
		return mysqlSessionConnector(u)
	case "postgres", "postgresql":
		return postgresSessionConnector(rawURL)
	}
	return nil, fmt.Errorf("%q is none of mysql://, postgres://", u.Scheme+"://")
}

func mysqlSessionConnector(u *url.URL) (sqldriver.Connector, error) {
	config, err := mysqlConfig(u)
	if err != nil {
		return nil, err
	}
	config.ReadTimeout, config.WriteTimeout = 0, 0
	return driver.NewConnector(config)
}

func postgresSessionConnector(rawURL string) (sqldriver.Connector, error) {
	config, err := postgresConfig(rawURL)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may lose prepared statements before the backend detects it
	return stdlib.GetConnector(*config), nil
}
