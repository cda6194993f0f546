package sqltx

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// MySQLHost is one of several servers. Only one of them accepts writes.
type MySQLHost struct {
	Address   string              // for error messages
	Connector sqldriver.Connector // opens sessions on the host
}

// MySQLPrimary returns a connector that opens each session on the first of the hosts that accepts
// writes. It asks them in order, and waits for each of them at most as long as the limit.
//
// All sessions in use belong to one server. After a session was opened on another server, the idle
// sessions on the former server are closed instead of being used again. A server that was a primary
// may be a replica now, and show old data.
func MySQLPrimary(limit time.Duration, hosts []MySQLHost) sqldriver.Connector {
	return &mysqlPrimary{hosts: hosts, limit: limit}
}

type mysqlPrimary struct {
	hosts  []MySQLHost
	limit  time.Duration
	latest atomic.Int64 // index of the host on which the last session was opened
}

// Driver returns the driver of all hosts.
func (p *mysqlPrimary) Driver() sqldriver.Driver { return p.hosts[0].Connector.Driver() }

// Connect opens a session.
func (p *mysqlPrimary) Connect(ctx context.Context) (sqldriver.Conn, error) {
	var refused error
	for n, host := range p.hosts {
		conn, err := p.connect(ctx, host)
		if err == nil {
			p.latest.Store(int64(n))
			return &primarySession{conn, p, int64(n)}, nil
		}
		err = fmt.Errorf("%s: %w", host.Address, err)
		if refused != nil {
			err = fmt.Errorf("%w; %w", refused, err)
		}
		refused = err
	}
	return nil, fmt.Errorf("no host accepts writes: %w", refused)
}

// errReadOnlyHost means that the server is a replica, or that its operator has stopped writes.
var errReadOnlyHost = errors.New("it is read-only")

// connect opens a session on the host. A Galera node that has lost its cluster refuses the
// transaction in which the session asks for the server's kind.
func (p *mysqlPrimary) connect(ctx context.Context, host MySQLHost) (mysqlConn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	conn, err := host.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	session := &mysqlSession{mysqlConn: conn.(mysqlConn)}
	server, err := session.server(ctx)
	if err == nil && server.readOnly() {
		err = errReadOnlyHost
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return session.mysqlConn, nil
}

// readOnly reports whether the server refuses writes. The server may still accept writes of
// administrators, but they must not write to a replica either.
func (s mysqlServer) readOnly() bool {
	for _, name := range []string{"read_only", "innodb_read_only"} { // innodb_read_only is set on an Aurora replica
		if value, known := s[name]; known && value != "OFF" {
			return true
		}
	}
	return false
}

// primarySession is a session that mysqlPrimary has opened.
type primarySession struct {
	mysqlConn
	primary *mysqlPrimary
	host    int64
}

// ResetSession rejects the session if a later one was opened on another host. Package sql calls it
// before it uses the session again.
func (s *primarySession) ResetSession(ctx context.Context) error {
	if s.primary.latest.Load() != s.host {
		return sqldriver.ErrBadConn
	}
	return s.mysqlConn.ResetSession(ctx)
}
