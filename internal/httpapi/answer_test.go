package httpapi

import (
	"testing"
	"time"
)

func TestRFC3339(t *testing.T) {
	west := time.FixedZone("", -8*3600)
	for _, test := range []struct {
		time time.Time
		want string // empty means null
	}{
		{time.Time{}, ``},
		{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), `2026-01-02T03:04:05.000000Z`},
		{time.Date(2026, 1, 2, 3, 4, 5, 120_000, time.UTC), `2026-01-02T03:04:05.000120Z`},
		{time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.UTC), `2026-12-31T23:59:59.999999Z`},
		{time.Date(2026, 12, 31, 20, 0, 0, 0, west), `2027-01-01T04:00:00.000000Z`},
	} {
		var got string
		if text := rfc3339(test.time); text != nil {
			got = *text
		}
		if got != test.want {
			t.Errorf("rfc3339(%v) = %s, want %s", test.time, got, test.want)
		}
	}
}
