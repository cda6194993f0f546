package httpapi

import (
	"testing"
	"time"
)

func TestAppendTime(t *testing.T) {
	west := time.FixedZone("", -8*3600)
	for _, test := range []struct {
		time time.Time
		want string
	}{
		{time.Time{}, `null`},
		{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), `"2026-01-02T03:04:05.000000Z"`},
		{time.Date(2026, 1, 2, 3, 4, 5, 120_000, time.UTC), `"2026-01-02T03:04:05.000120Z"`},
		{time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.UTC), `"2026-12-31T23:59:59.999999Z"`},
		{time.Date(2026, 12, 31, 20, 0, 0, 0, west), `"2027-01-01T04:00:00.000000Z"`},
	} {
		if got := string(appendTime(nil, test.time)); got != test.want {
			t.Errorf("appendTime(%v) = %s, want %s", test.time, got, test.want)
		}
	}
}
