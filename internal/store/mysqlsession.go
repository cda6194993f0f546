package store

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// mysqlConnector opens sessions and asks the server behind each of them what it
// is: one address may lead to several servers.
type mysqlConnector struct {
	sqldriver.Connector
	texts bool // the URL allows a text of several statements
}

// Connect opens a session.
func (c mysqlConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	session := &mysqlSession{mysqlConn: conn.(mysqlConn)}
	server, err := session.server(ctx)
	if err == nil && server.galera() {
		// A read must see what other nodes have acknowledged before, and only that.
		err = session.run(ctx, "SET SESSION wsrep_sync_wait = @@wsrep_sync_wait | 1, SESSION wsrep_dirty_reads = 0")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("asking the server what it is: %w", err)
	}
	session.mariaDB = isMariaDB(server["version"])
	session.texts = c.texts && server.keepsTransactions()
	return session, nil
}

// mysqlConn is what package sql uses of the driver's connections.
type mysqlConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.NamedValueChecker
	sqldriver.Pinger
	sqldriver.SessionResetter
	sqldriver.Validator
}

// mysqlSession is a connection to a server that is known.
type mysqlSession struct {
	mysqlConn
	mariaDB bool
	texts   bool // it may be sent several statements in one text
}

// mysqlServer are some of a server's global variables, those that it has.
type mysqlServer map[string]string

// server asks for them in a transaction: proxies that send reads to a replica
// send those in a transaction where writes go.
func (s *mysqlSession) server(ctx context.Context) (mysqlServer, error) {
	if err := s.run(ctx, "START TRANSACTION"); err != nil {
		return nil, err
	}
	rows, err := s.QueryContext(ctx, `SHOW GLOBAL VARIABLES WHERE Variable_name IN
		('version', 'version_comment', 'wsrep_provider', 'group_replication_group_name', 'aurora_version')`, nil)
	if err != nil {
		return nil, err
	}
	server := make(mysqlServer)
	for row := make([]sqldriver.Value, 2); ; {
		if err = rows.Next(row); err != nil {
			break
		}
		server[text(row[0])] = text(row[1])
	}
	if !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, rows.Close())
	}
	return server, errors.Join(rows.Close(), s.run(ctx, "ROLLBACK"))
}

func text(value sqldriver.Value) string {
	if b, ok := value.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(value)
}

func (s *mysqlSession) run(ctx context.Context, statement string) error {
	_, err := s.ExecContext(ctx, statement, nil)
	return err
}

// galera reports whether the server is, or may become, a node of a Galera
// cluster.
func (s mysqlServer) galera() bool {
	provider := s["wsrep_provider"]
	return provider != "" && provider != "none"
}

// mysqlBuilds are how the version comments of MySQL servers begin.
var mysqlBuilds = []string{"MySQL Community Server", "MySQL Enterprise Server", "Percona Server", "(Ubuntu)"}

// keepsTransactions reports whether the server is known to end a text of several
// statements at its first error and at a loss of its transaction. A node of a
// Galera cluster does not: another node's write may roll the transaction back
// between two statements, and those that follow are committed one by one.
func (s mysqlServer) keepsTransactions() bool {
	if s.galera() || s["group_replication_group_name"] != "" || s["aurora_version"] != "" {
		return false
	}
	if isMariaDB(s["version"]) {
		return true
	}
	return slices.ContainsFunc(mysqlBuilds, func(name string) bool { return strings.HasPrefix(s["version_comment"], name) })
}

// takesTexts reports whether the connection may be sent several statements in
// one text.
func takesTexts(conn *sql.Conn) (texts bool) {
	_ = conn.Raw(func(raw any) error {
		session, ok := raw.(*mysqlSession)
		texts = ok && session.texts
		return nil
	})
	return texts
}
