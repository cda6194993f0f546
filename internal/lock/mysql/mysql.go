// Package mysql locks with GET_LOCK of MariaDB and MySQL. See package session for what a lease
// promises.
//
// A lock belongs to one server: the server that grants it does not tell its replicas or the other
// nodes of a cluster. If clients write to two servers, both grant the same lock. So the package
// refuses Galera, groups with several primaries, and read-only servers. A holder loses its lock
// when its server becomes read-only, for example before a switchover.
package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/session"
)

// New returns a Locker on the pool, whose database has fencing_tokens, and whose driver
// accepts several statements in one text. For pool and lease see session.New.
func New(ctx context.Context, pool *sql.DB, lease time.Duration) (*session.Locker, error) {
	var tokens counter
	return session.New(ctx, pool, session.Database{
		Try:       "SELECT CONNECTION_ID(), GET_LOCK(?, 0)",
		Wait:      tokens.wait,
		Check:     "SELECT CONNECTION_ID(), COALESCE(IS_USED_LOCK(?) = CONNECTION_ID(), FALSE) AND NOT @@GLOBAL.read_only",
		Unlock:    "SELECT CONNECTION_ID(), COALESCE(RELEASE_LOCK(?), FALSE)",
		Key:       func(scope, name string) any { return Key(scope, name) },
		Mint:      tokens.mint,
		IsTimeout: func(error) bool { return false }, // GET_LOCK returns 0 after its timeout
		Prepare:   tokens.prepare,
	}, lease)
}

const keyPrefix = "holdfast/"

// Key returns the name of a lock on the server, where the locks of all databases
// share their names. MySQL allows 64 characters.
func Key(database, name string) string {
	hash := sha256.Sum256([]byte(database + "\x00" + name))
	return keyPrefix + hex.EncodeToString(hash[:24])
}

func (c *counter) prepare(ctx context.Context, conn *sql.Conn, lease time.Duration) (s session.Server, err error) {
	variables, err := show(ctx, conn, `SHOW GLOBAL VARIABLES WHERE Variable_name IN
		('version', 'read_only', 'wsrep_provider', 'group_replication_group_name', 'group_replication_single_primary_mode')`)
	if err != nil {
		return s, err
	}
	if err := refuse(variables); err != nil {
		return s, err
	}
	if s.Uptime, err = uptime(ctx, conn); err != nil {
		return s, fmt.Errorf("reading the server's uptime: %w", err)
	}
	statementBound := "max_execution_time"
	if strings.Contains(variables["version"], "MariaDB") {
		statementBound = "max_statement_time"
	}
	for _, statement := range []string{
		fmt.Sprintf("SET SESSION wait_timeout = %d, time_zone = '+00:00', autocommit = 1, %s = 0", lease/time.Second, statementBound),
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", // without gap locks, mints in a table do not wait for each other
	} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return s, err
		}
	}
	// A server may store the names of databases in lower case and still return them
	// as a client has written them.
	var kind *string
	err = conn.QueryRowContext(ctx, `SELECT CONNECTION_ID(), LOWER(DATABASE()), (SELECT table_type
		FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'fencing_tokens')`).Scan(&s.Session, &s.Scope, &kind)
	switch {
	case err != nil:
		return s, err
	case kind == nil:
		return s, lock.ErrNotMigrated
	}
	c.table.Store(*kind != "SEQUENCE")
	return s, nil
}

// uptime returns the least time for which the server has been up. The server subtracts two times in
// whole seconds, so it may report almost a second too much.
func uptime(ctx context.Context, conn *sql.Conn) (time.Duration, error) {
	var seconds int64
	err := conn.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Uptime'").Scan(new(string), &seconds)
	return time.Duration(seconds-1) * time.Second, err
}

// refuse returns an error if other servers may grant the same locks.
func refuse(variables map[string]string) error {
	switch provider := variables["wsrep_provider"]; {
	case provider != "" && provider != "none":
		return errors.New("the server belongs to a Galera cluster, where each node has locks of its own")
	case variables["group_replication_group_name"] != "" && variables["group_replication_single_primary_mode"] == "OFF":
		return errors.New("the server belongs to a group with several primaries, where each has locks of its own")
	case variables["read_only"] != "OFF":
		return errors.New("the server is read-only, so another one may grant the same locks")
	}
	return nil
}

// show returns the rows of a SHOW statement with two columns.
func show(ctx context.Context, conn *sql.Conn, statement string) (map[string]string, error) {
	rows, err := conn.QueryContext(ctx, statement)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	values := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		values[name] = value
	}
	return values, rows.Err()
}
