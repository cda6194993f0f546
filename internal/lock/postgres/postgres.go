// Package postgres locks with the advisory locks of PostgreSQL 14 or later. See package session for
// what a lease promises.
//
// A lock belongs to one server. Standbys do not have the lock, and mint no tokens. If an old
// primary keeps running after a standby was promoted, both grant the same lock.
package postgres

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/session"
)

// New returns a Locker on the pool, whose schema has the sequence fencing_tokens. For pool
// and lease see session.New.
func New(ctx context.Context, pool *sql.DB, lease time.Duration) (*session.Locker, error) {
	return session.New(ctx, pool, session.Database{
		Try:       try,
		Wait:      wait,
		Check:     "SELECT pg_backend_pid(), $1::bigint IS NOT NULL", // only the session itself can free its lock
		Unlock:    unlock,
		Key:       func(scope, name string) any { return Key(scope, name) },
		Mint:      mint,
		IsTimeout: isLockTimeout,
		Prepare:   prepare,
	}, lease)
}

// The statements that each session prepares, so that a grant need not wait for the server to parse
// them.
const (
	try       = "SELECT pg_backend_pid(), pg_try_advisory_lock($1)"
	waitFor   = "SELECT pg_backend_pid(), pg_advisory_lock($1) IS NOT NULL"
	unlock    = "SELECT pg_backend_pid(), pg_advisory_unlock($1)"
	nextValue = "SELECT nextval('fencing_tokens'), clock_timestamp()"
)

// Key returns the number of a lock. scope is DATABASE.SCHEMA.
func Key(scope, name string) int64 {
	hash := sha256.Sum256([]byte(scope + "\x00" + name))
	return int64(binary.BigEndian.Uint64(hash[:]))
}

// raiseTo raises the sequence to the clock $1, unless another session has done so, and returns the
// next token. setval could also lower a sequence, so only one session at a time may raise it. Their
// lock has a key of two numbers, which no named lock has. That session raises the sequence only if
// it is still more than session.MaxBehind, $2, behind. Other sessions may take values meanwhile,
// but do not use them: the values are behind the clock too, so these sessions wait. If the clock is
// set back at that moment, they use the values. Then setval lowers the sequence only if a million
// values were taken while it ran.
const raiseTo = `SELECT CASE
	WHEN pg_advisory_xact_lock(1752132708, 1717662580) IS NULL THEN NULL
	WHEN (SELECT last_value FROM fencing_tokens) < $1::bigint - $2::bigint THEN setval('fencing_tokens', $1::bigint)
	ELSE nextval('fencing_tokens') END`

func mint(ctx context.Context, conn *sql.Conn, _ any) (token int64, err error) {
	var clock time.Time
	if err := conn.QueryRowContext(ctx, nextValue).Scan(&token, &clock); err != nil {
		return 0, err
	}
	return raise(ctx, conn, token, clock.UnixMicro())
}

// raise returns the token, or a later one if that token is too far behind the clock.
func raise(ctx context.Context, conn *sql.Conn, token, clock int64) (int64, error) {
	if token >= clock-session.MaxBehind {
		return token, nil
	}
	err := conn.QueryRowContext(ctx, raiseTo, clock, session.MaxBehind).Scan(&token)
	return token, err
}

// wait sends both statements in one pipeline, which is one transaction. Its commit flushes the log
// records of nextval to the disk. nextval logs 32 values at once, so a session can get a value
// while another is still flushing it. If the server crashes then, the clock still makes later
// tokens greater.
func wait(ctx context.Context, conn *sql.Conn, key any) (taken session.Taken, err error) {
	var clock time.Time
	batch := new(pgx.Batch)
	batch.Queue(waitFor, key).QueryRow(func(row pgx.Row) error {
		return row.Scan(&taken.Session, &taken.Granted)
	})
	batch.Queue(nextValue).QueryRow(func(row pgx.Row) error { return row.Scan(&taken.Token, &clock) })
	err = conn.Raw(func(driverConn any) error { return driverConn.(*stdlib.Conn).Conn().SendBatch(ctx, batch).Close() })
	if err != nil {
		return taken, err
	}
	taken.Token, err = raise(ctx, conn, taken.Token, clock.UnixMicro())
	return taken, err
}

// isLockTimeout reports whether lock_timeout ended a statement.
func isLockTimeout(err error) bool {
	var e interface{ SQLState() string }
	return errors.As(err, &e) && e.SQLState() == "55P03"
}

// prepare changes only settings that the server knows. Earlier versions lack some.
func prepare(ctx context.Context, conn *sql.Conn, lease time.Duration) (s session.Server, err error) {
	var settings string
	err = conn.QueryRowContext(ctx, `SELECT string_agg(name || '=' || set_config(name, CASE name
			WHEN 'idle_session_timeout' THEN $1
			WHEN 'lock_timeout' THEN $2
			WHEN 'client_connection_check_interval' THEN '1s'
			WHEN 'default_transaction_isolation' THEN 'read committed'
			ELSE '0' END, false), ' ')
		FROM pg_settings WHERE name IN ('idle_session_timeout', 'lock_timeout', 'client_connection_check_interval',
			'default_transaction_isolation', 'statement_timeout', 'transaction_timeout')`,
		milliseconds(lease), milliseconds(session.MaxWait)).Scan(&settings)
	if err != nil {
		return s, err
	}
	if !strings.Contains(settings, "idle_session_timeout") {
		return s, errors.New("the server has no idle_session_timeout, so a holder that was cut off would keep its locks: PostgreSQL 14 or later is needed")
	}
	// If a server process crashes, the server ends all sessions and forgets their locks, but
	// pg_postmaster_start_time does not change. The server also resets its statistics then.
	var (
		uptime   float64
		migrated bool
	)
	err = conn.QueryRowContext(ctx, `SELECT pg_backend_pid(), current_database() || '.' || COALESCE(current_schema(), ''),
		EXTRACT(EPOCH FROM clock_timestamp() - GREATEST(pg_postmaster_start_time(),
			(SELECT stats_reset FROM pg_stat_bgwriter)))::float8, to_regclass('fencing_tokens') IS NOT NULL`).Scan(&s.Session, &s.Scope, &uptime, &migrated)
	if err == nil && !migrated {
		err = lock.ErrNotMigrated
	}
	if err != nil {
		return s, err
	}
	s.Uptime = time.Duration(uptime * float64(time.Second))
	return s, conn.Raw(func(driverConn any) error {
		for _, statement := range []string{try, waitFor, unlock, nextValue} {
			if _, err := driverConn.(*stdlib.Conn).Conn().Prepare(ctx, statement, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
