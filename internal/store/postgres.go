package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
)

func openPostgres(ctx context.Context, rawURL string) (*SQL, error) {
	config, err := pgx.ParseConfig(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, postgresProblem(err))
	}
	if config.Database == "" {
		return nil, fmt.Errorf("%w: it names no database", ErrBadURL)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	config.DialFunc = postgresDialer().DialContext
	config.RuntimeParams["application_name"] = orDefault(config.RuntimeParams, "application_name", "holdfast")
	s := &SQL{
		dialect:    Postgres,
		target:     "PostgreSQL at " + net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))),
		migrations: func() (database.Driver, error) { return postgresMigrations(config) },
	}

	sessions := config.Copy()
	for name, value := range map[string]string{
		"default_transaction_isolation":       "read committed",
		"lock_timeout":                        milliseconds(lockWait),
		"idle_in_transaction_session_timeout": milliseconds(idleTransaction),
		"statement_timeout":                   milliseconds(silence),
		"tcp_user_timeout":                    milliseconds(silence),
	} {
		sessions.RuntimeParams[name] = orDefault(sessions.RuntimeParams, name, value)
	}
	s.pool = stdlib.OpenDB(*sessions)
	return s.open(ctx, poolSize, postgres.New(postgres.Config{Conn: pool{DB: s.pool, exec: execPostgres, final: true}}))
}

// postgresProblem takes the connection string, which the parser's error
// quotes, off the error.
func postgresProblem(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return errors.New("a parameter of it cannot be used: " + inner.Error())
	}
	return errors.New("it cannot be parsed")
}

func postgresDialer() *net.Dialer {
	return &net.Dialer{
		Timeout: connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   true,
			Idle:     silence / 2,
			Interval: silence / 10,
			Count:    5,
		},
		Control: boundUnacknowledged,
	}
}

func orDefault(parameters map[string]string, name, value string) string {
	if set, ok := parameters[name]; ok {
		return set
	}
	return value
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func postgresMigrations(config *pgx.ConnConfig) (database.Driver, error) {
	own := config.Copy()
	own.RuntimeParams["lock_timeout"] = milliseconds(migrationLockWait) // it bounds the wait for another migration too
	own.RuntimeParams["statement_timeout"] = "0"
	pool := stdlib.OpenDB(*own)
	migrations, err := migratepgx.WithInstance(pool, &migratepgx.Config{})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return migrations, nil
}
