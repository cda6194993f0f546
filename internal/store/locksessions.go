package store

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"net"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// OpenSessions returns a pool for sessions that hold locks, at a mysql:// or postgres:// URL as
// OpenSQL takes it. It does not connect yet. The sessions have none of the ledger's bounds, so each
// statement needs a context that ends. The pool keeps no idle connections: closing a connection
// ends its session. Each onDial is called with each new connection, below TLS, and with the context
// of the call that has opened it.
//
// It returns ErrBadURL if the URL is invalid, or names another database.
func OpenSessions(rawURL string, onDial ...func(context.Context, net.Conn)) (*sql.DB, error) {
	connector, err := sessionConnector(rawURL, onDial)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxIdleConns(-1)
	return pool, nil
}

// dialFunc is the type of the dial functions of both drivers.
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// reporting returns a dialFunc that calls each onDial with every new connection.
func reporting(dial dialFunc, onDial ...func(context.Context, net.Conn)) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		for _, report := range onDial {
			report(ctx, conn)
		}
		return conn, nil
	}
}

func sessionConnector(rawURL string, onDial []func(context.Context, net.Conn)) (sqldriver.Connector, error) {
	u, hosts, err := parseDatabase(rawURL)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "mysql":
		return mysqlSessionConnector(u, hosts, onDial)
	case "postgres", "postgresql":
		return postgresSessionConnector(rawURL, onDial)
	}
	return nil, fmt.Errorf("%q is none of mysql://, postgres://", u.Scheme+"://")
}

func mysqlSessionConnector(u *url.URL, hosts []string, onDial []func(context.Context, net.Conn)) (sqldriver.Connector, error) {
	config, err := mysqlConfig(u, hosts)
	if err != nil {
		return nil, err
	}
	config.ReadTimeout, config.WriteTimeout = 0, 0
	config.MultiStatements = true // safe, because no statement contains a caller's text
	config.DialFunc = reporting(new(net.Dialer).DialContext, onDial...)
	return mysqlConnector(config)
}

func postgresSessionConnector(rawURL string, onDial []func(context.Context, net.Conn)) (sqldriver.Connector, error) {
	config, err := postgresConfig(rawURL)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may lose prepared statements before the backend detects it
	config.DialFunc = reporting(config.DialFunc, onDial...)
	return stdlib.GetConnector(*config), nil
}
