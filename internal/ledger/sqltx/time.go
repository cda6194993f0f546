package sqltx

import (
	"fmt"
	"time"
)

// Time scans a column that holds a time, or Dialect.Now. The time is in UTC and has
// whole microseconds. NULL is the zero time.
type Time struct{ time.Time }

// Scan sets t to a value from a database.
func (t *Time) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*t = Time{}
		return nil
	case time.Time:
		t.Time = v
	case string: // SQLite, of an expression
		parsed, err := time.Parse("2006-01-02 15:04:05.999999999-07:00", v)
		if err != nil {
			return fmt.Errorf("scanning a time: %w", err)
		}
		t.Time = parsed
	default:
		return fmt.Errorf("scanning a time: it is a %T", value)
	}
	t.Time = t.UTC().Truncate(time.Microsecond)
	return nil
}
