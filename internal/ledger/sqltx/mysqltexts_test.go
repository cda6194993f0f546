package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// TestTexts_OnlyWhereTheyAreSafe checks that statements are sent one by one to a
// server that is not known to keep the transaction of a text.
func TestTexts_OnlyWhereTheyAreSafe(t *testing.T) {
	for _, test := range []struct {
		server mysqlServer
		want   bool
	}{
		{mysqlServer{"version": "10.11.19-MariaDB-0+deb12u1", "version_comment": "Debian 12", "wsrep_provider": "none"}, true},
		{mysqlServer{"version": "11.4.2-MariaDB-log"}, true},
		{mysqlServer{"version": "10.11.19-MariaDB", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, false},
		{mysqlServer{"version": "8.4.0", "version_comment": "MySQL Community Server - GPL"}, true},
		{mysqlServer{"version": "8.0.36-28", "version_comment": "Percona Server (GPL), Release 28"}, true},
		{mysqlServer{"version": "8.0.36-28.1", "version_comment": "Percona XtraDB Cluster (GPL)", "wsrep_provider": "/usr/lib/galera4.so"}, false},
		{mysqlServer{"version": "8.4.0", "version_comment": "MySQL Community Server - GPL", "group_replication_group_name": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"}, false},
		{mysqlServer{"version": "8.0.32", "version_comment": "Source distribution", "aurora_version": "3.04.0"}, false},
		{mysqlServer{"version": "8.0.11-TiDB-v8.5.0", "version_comment": "TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible"}, false},
		{mysqlServer{"version": "8.0.30-Vitess", "version_comment": "Version: 19.0.0"}, false},
		{mysqlServer{}, false},
	} {
		if got := test.server.keepsTransactions(); got != test.want {
			t.Errorf("%v: %v, want %v", test.server, got, test.want)
		}
	}
}

// fakeConn gives every text the same answer, and fails queries.
type fakeConn struct {
	mysqlConn
	affected []int64
	err      error
	closed   bool
}

func (c *fakeConn) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return fakeResult(c.affected), c.err
}
func (*fakeConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return nil, errors.New("no such variable")
}
func (*fakeConn) CheckNamedValue(*driver.NamedValue) error { return nil }
func (*fakeConn) ResetSession(context.Context) error       { return nil }
func (c *fakeConn) IsValid() bool                          { return !c.closed }
func (c *fakeConn) Close() error {
	c.closed = true
	return nil
}

// fakeConn is its own connector.
func (c *fakeConn) Driver() driver.Driver { return nil }
func (c *fakeConn) Connect(context.Context) (driver.Conn, error) {
	return &mysqlSession{mysqlConn: c, texts: true}, nil
}

// fakeResult is how many rows each statement of a text affected.
type fakeResult []int64

func (fakeResult) LastInsertId() (int64, error)   { return 0, nil }
func (r fakeResult) RowsAffected() (int64, error) { return r[len(r)-1], nil }
func (r fakeResult) AllRowsAffected() []int64     { return r }
func (fakeResult) AllLastInsertIds() []int64      { return nil }

// TestTexts_NoWholeAnswer checks that the outcome of a text is unknown, and its
// connection closed, if some answers are missing or the error could be that of
// the COMMIT.
func TestTexts_NoWholeAnswer(t *testing.T) {
	for name, conn := range map[string]*fakeConn{
		"answers missing": {affected: []int64{0, 1, 1}},
		"interrupted":     {err: &mysql.MySQLError{Number: 1317, SQLState: [5]byte([]byte("70100"))}},
	} {
		conns := pool{DB: sql.OpenDB(conn), exec: execMySQL, guard: mysqlGuard}
		defer conns.DB.Close()
		began, err := conns.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		committed, err := began.(*transaction).commitIf(t.Context(), []Statement{{SQL: "UPDATE"}, {SQL: "INSERT"}, {SQL: "COMMIT"}})
		if committed || !errors.Is(err, ErrUnknownOutcome) || !conn.closed {
			t.Errorf("%s: committed %v, %v, connection closed %v", name, committed, err, conn.closed)
		}
	}
}
