package sqltx

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Dialect is a kind of database. Each of its methods is one difference between
// the kinds.
type Dialect string

// The dialects.
const (
	MySQL    Dialect = "mysql" // also for MariaDB
	Postgres Dialect = "postgres"
	SQLite   Dialect = "sqlite"
)

// System is the name of the database in traces, by OpenTelemetry's conventions.
func (d Dialect) System() string {
	if d == Postgres {
		return "postgresql"
	}
	return string(d)
}

// RowLock is the clause that makes a SELECT lock its rows. SQLite has no row
// locks: a transaction holds the only write lock from its beginning.
func (d Dialect) RowLock() string {
	if d == SQLite {
		return ""
	}
	return " FOR UPDATE"
}

// KeysOfDelete bounds the keys in one DELETE that must wait for no other row. To find several keys,
// MariaDB may read a whole table, and then waits for rows that other transactions have locked.
func (d Dialect) KeysOfDelete() int {
	if d == MySQL {
		return 1
	}
	return 250
}

// Now is the expression for the database's clock: the present time in UTC, even inside a long
// transaction. For SQLite it is this machine's clock, in whole milliseconds, formatted as times are
// stored.
func (d Dialect) Now() string {
	switch d {
	case Postgres:
		return "clock_timestamp()"
	case SQLite:
		return "strftime('%Y-%m-%d %H:%M:%f+00:00', 'now')"
	}
	return "UTC_TIMESTAMP(6)"
}

// After is the expression for the database's clock plus the given duration, in whole milliseconds.
func (d Dialect) After(wait time.Duration) string {
	switch d {
	case Postgres:
		return fmt.Sprintf("clock_timestamp() + INTERVAL '%d milliseconds'", wait.Milliseconds())
	case SQLite:
		return fmt.Sprintf("strftime('%%Y-%%m-%%d %%H:%%M:%%f+00:00', 'now', '%+.3f seconds')", wait.Seconds())
	}
	return fmt.Sprintf("UTC_TIMESTAMP(6) + INTERVAL %d MICROSECOND", wait.Milliseconds()*1000)
}

// Require is an integer expression for a column that is NOT NULL. It has the given value if the
// condition is true. Otherwise the statement fails, as if the statement of Tx.Expect had affected
// too few rows. The value must be positive.
//
// MySQL and PostgreSQL fail because the number is out of range, which is an error in every
// sql_mode. SQLite fails because the column cannot be NULL.
func (d Dialect) Require(condition, value string) string {
	switch d {
	case Postgres: // PostgreSQL computes constants when it plans, needed or not
		return "CASE WHEN " + condition + " THEN " + value + " ELSE 9223372036854775807 + " + value + " END"
	case SQLite:
		return "CASE WHEN " + condition + " THEN " + value + " END"
	}
	return "IF(" + condition + ", " + value + ", ~0 + 1)"
}

// Upsert is the clause of an INSERT that updates the existing row with the same key. It ends before
// the assignments. In these, inserted is the expression for the value that the INSERT has for a
// column.
func (d Dialect) Upsert(key ...string) (clause string, inserted func(column string) string) {
	if d == MySQL {
		return " ON DUPLICATE KEY UPDATE ", func(column string) string { return "VALUES(" + column + ")" }
	}
	return " ON CONFLICT (" + strings.Join(key, ", ") + ") DO UPDATE SET ", func(column string) string { return "excluded." + column }
}

// AppendTime appends t to a statement, as a literal for a column that holds a time: in UTC, in
// whole microseconds. The zero time is NULL. For MySQL the literal is a number, which it reads
// faster than a text. For the others it is the text that SQLite's driver stores.
func (d Dialect) AppendTime(sql []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(sql, "NULL"...)
	}
	t = t.UTC()
	if d != MySQL {
		return t.Truncate(time.Microsecond).AppendFormat(sql, "'2006-01-02 15:04:05.999999999-07:00'")
	}
	// The number 20060102150405.000000. AppendFormat would take five times as long, once or twice for
	// each order.
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	date := (int64(year)*100+int64(month))*100 + int64(day)
	clock := (int64(hour)*100+int64(minute))*100 + int64(second)
	sql = strconv.AppendInt(sql, date*1_000_000+clock, 10)
	dot := len(sql)
	sql = strconv.AppendInt(sql, 1_000_000+int64(t.Nanosecond()/1000), 10)
	sql[dot] = '.' // replaces the 1
	return sql
}

// AppendText appends value to a statement of MySQL or SQLite, as a literal for a column
// that holds text. Only letters, digits and a few other characters are written as they
// are, so nothing needs an escape, whatever the sql_mode.
func (d Dialect) AppendText(sql []byte, value string) []byte {
	if plain(value) {
		return append(append(append(sql, '\''), value...), '\'')
	}
	if d == SQLite {
		return append(AppendBytes(append(sql, "CAST("...), []byte(value)), " AS TEXT)"...)
	}
	return AppendBytes(sql, []byte(value))
}

// plain reports whether value can stand between quotes unescaped, in every sql_mode and for drivers
// that look for placeholders.
func plain(value string) bool {
	for i := range len(value) {
		switch c := value[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}

// AppendBytes appends bytes to a statement of MySQL or SQLite, as a literal.
func AppendBytes(sql, bytes []byte) []byte {
	return append(hex.AppendEncode(append(sql, "X'"...), bytes), '\'')
}

// BigInt is the type name that casts to a 64-bit integer. PostgreSQL treats an
// argument inside CASE as text without the cast.
func (d Dialect) BigInt() string {
	if d == MySQL {
		return "SIGNED"
	}
	return "BIGINT"
}

// Arrays reports whether a column of values can be passed as one array argument,
// so that one prepared statement serves groups of every size.
func (d Dialect) Arrays() bool { return d == Postgres }

// UUID is id as an argument that is compared with a column.
func (d Dialect) UUID(id uuid.UUID) any {
	if d == Postgres {
		return id.String()
	}
	return id[:]
}

// confirmation is the statement that Confirm runs, or empty if the dialect needs none. If there are
// synchronous standbys, the statement makes PostgreSQL write to its log. The commit of that write
// waits for the standbys, and so for all earlier writes.
func (d Dialect) confirmation() string {
	if d != Postgres {
		return ""
	}
	return "SELECT pg_logical_emit_message(true, 'holdfast', '') WHERE current_setting('synchronous_standby_names') <> ''"
}
