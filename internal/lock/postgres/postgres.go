// Package postgres locks with the advisory locks of PostgreSQL 14 or later. See
// package session for what a lease promises.
//
// A lock belongs to one server. Standbys do not have it, and mint no tokens. If an
// old primary goes on after a standby was promoted, both grant the same lock.
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

// New returns a Locker on the pool, whose schema has the table lock_tokens. For pool
// and lease see session.New.
func New(ctx context.Context, pool *sql.DB, lease time.Duration) (*session.Locker, error) {
	return session.New(ctx, pool, session.Database{
		Try:       "SELECT pg_backend_pid(), pg_try_advisory_lock($1)",
		Wait:      wait,
		Check:     "SELECT pg_backend_pid(), $1::bigint IS NOT NULL", // only the session itself could free its lock
		Unlock:    "SELECT pg_backend_pid(), pg_advisory_unlock($1)",
		Key:       func(scope, name string) any { return Key(scope, name) },
		Mint:      mint,
		IsTimeout: isLockTimeout,
		Prepare:   prepare,
	}, lease)
}

// Key returns the number of a lock. scope is DATABASE.SCHEMA.
func Key(scope, name string) int64 {
	hash := sha256.Sum256([]byte(scope + "\x00" + name))
	return int64(binary.BigEndian.Uint64(hash[:]))
}

// tokenKeyShift makes a key of lock_tokens: locks whose keys have the same first eight bits
// share a row. With another shift, a lock's tokens could fall.
const tokenKeyShift = 56

// mint raises the token of the row that the lock shares with others. Earlier versions had
// a row for each lock: the token is greater than that one, too.
func mint(ctx context.Context, conn *sql.Conn, key any) (token int64, err error) {
	err = conn.QueryRowContext(ctx, minting, shared(key), key).Scan(&token)
	return token, err
}

// shared returns the key of the row.
func shared(key any) int64 { return key.(int64) >> tokenKeyShift }

const minting = `INSERT INTO lock_tokens AS t (lock_key, token)
		VALUES ($1, GREATEST((EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint,
			(SELECT token + 1 FROM lock_tokens WHERE lock_key = $2)))
		ON CONFLICT (lock_key) DO UPDATE SET token = GREATEST(t.token + 1, EXCLUDED.token)
		RETURNING token`

// wait sends both statements in one pipeline, which is one transaction. Each sees what was
// committed before it began, so the token is greater than that of the last holder.
func wait(ctx context.Context, conn *sql.Conn, key any) (taken session.Taken, err error) {
	batch := new(pgx.Batch)
	batch.Queue("SELECT pg_backend_pid(), pg_advisory_lock($1) IS NOT NULL", key).QueryRow(func(row pgx.Row) error {
		return row.Scan(&taken.Session, &taken.Granted)
	})
	batch.Queue(minting, shared(key), key).QueryRow(func(row pgx.Row) error { return row.Scan(&taken.Token) })
	err = conn.Raw(func(driverConn any) error { return driverConn.(*stdlib.Conn).Conn().SendBatch(ctx, batch).Close() })
	return taken, err
}

// isLockTimeout reports whether lock_timeout ended a statement.
func isLockTimeout(err error) bool {
	var e interface{ SQLState() string }
	return errors.As(err, &e) && e.SQLState() == "55P03"
}

// prepare changes only the settings that the server knows. The others are those of
// later versions.
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
	// If one of its processes crashes, a server ends all sessions and forgets their locks,
	// but pg_postmaster_start_time stays as it was. It also resets its statistics then.
	var (
		uptime   float64
		migrated bool
	)
	err = conn.QueryRowContext(ctx, `SELECT pg_backend_pid(), current_database() || '.' || COALESCE(current_schema(), ''),
		EXTRACT(EPOCH FROM clock_timestamp() - GREATEST(pg_postmaster_start_time(),
			(SELECT stats_reset FROM pg_stat_bgwriter)))::float8, to_regclass('lock_tokens') IS NOT NULL`).Scan(&s.Session, &s.Scope, &uptime, &migrated)
	if err == nil && !migrated {
		err = lock.ErrNoTable
	}
	s.Uptime = time.Duration(uptime * float64(time.Second))
	return s, err
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
