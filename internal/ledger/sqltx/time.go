package sqltx

import (
	"fmt"
	"time"
)

// Time scans a column that holds a time, or Dialect.Now, into a time.Time:
// (*Time)(&t). The time is in UTC and has whole microseconds. NULL is the zero time.
type Time time.Time

// Nullable returns t as an argument for a column that holds a time. The zero time is NULL.
func Nullable(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Scan sets t to a value from a database.
func (t *Time) Scan(value any) error {
	var scanned time.Time
	switch v := value.(type) {
	case nil:
		*t = Time{}
		return nil
	case time.Time:
		scanned = v
	case string: // SQLite returns a text for an expression
		var err error
		if scanned, err = time.Parse("2006-01-02 15:04:05.999999999-07:00", v); err != nil {
			return fmt.Errorf("scanning a time: %w", err)
		}
	default:
		return fmt.Errorf("scanning a time: it is a %T", value)
	}
	*t = Time(scanned.UTC().Truncate(time.Microsecond))
	return nil
}
