package sqltx

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

// MySQLConnector returns a connector that asks the server of each session for its kind, because one
// address may lead to several servers. texts says that the driver may send several statements as
// one text.
func MySQLConnector(connector sqldriver.Connector, texts bool) sqldriver.Connector {
	return mysqlConnector{connector, texts}
}

type mysqlConnector struct {
	sqldriver.Connector
	texts bool
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
		// A read must see every write that other nodes have acknowledged before it.
		err = session.run(ctx, "SET SESSION wsrep_sync_wait = @@wsrep_sync_wait | 1, SESSION wsrep_dirty_reads = 0")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("asking the server for its kind: %w", err)
	}
	session.texts = c.texts && server.keepsTransactions()
	return session, nil
}

// mysqlConn is the part of the driver's connections that package sql uses.
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

// mysqlSession is a connection to a server whose kind is known.
type mysqlSession struct {
	mysqlConn
	texts bool // several statements may be sent as one text
}

// mysqlServer has the global variables that tell the kinds of servers apart, and whether the server
// accepts writes.
type mysqlServer map[string]string

// server reads the variables in a transaction, because a proxy that sends reads to a replica sends
// the reads of a transaction to the primary.
func (s *mysqlSession) server(ctx context.Context) (mysqlServer, error) {
	if err := s.run(ctx, "START TRANSACTION"); err != nil {
		return nil, err
	}
	rows, err := s.QueryContext(ctx, `SHOW GLOBAL VARIABLES WHERE Variable_name IN
		('version', 'version_comment', 'wsrep_provider', 'group_replication_group_name', 'aurora_version', 'read_only', 'innodb_read_only')`, nil)
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

// mysqlBuilds are the prefixes of the version comments of MySQL servers.
var mysqlBuilds = []string{"MySQL Community Server", "MySQL Enterprise Server", "Percona Server", "(Ubuntu)"}

// keepsTransactions reports whether the server is known to stop a text of several statements at the
// first error and when the transaction is lost. A node of a Galera cluster does not stop. Another
// node's write may roll back the transaction between two statements, and the following statements
// are then committed one by one.
func (s mysqlServer) keepsTransactions() bool {
	if s.galera() || s["group_replication_group_name"] != "" || s["aurora_version"] != "" {
		return false
	}
	if IsMariaDB(s["version"]) {
		return true
	}
	return slices.ContainsFunc(mysqlBuilds, func(name string) bool { return strings.HasPrefix(s["version_comment"], name) })
}

// IsMariaDB reports whether the version is MariaDB's.
func IsMariaDB(version string) bool { return strings.Contains(version, "MariaDB") }

// takesTexts reports whether several statements, a COMMIT among them, may be sent to
// the connection at once.
func takesTexts(conn *sql.Conn) (texts bool) {
	_ = conn.Raw(func(raw any) error {
		switch session := raw.(type) {
		case *mysqlSession:
			texts = session.texts
		case *postgresSession:
			texts = true
		}
		return nil
	})
	return texts
}
