package sqltx

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestDialect checks what every method returns on every dialect.
func TestDialect(t *testing.T) {
	id := uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")
	for _, test := range []struct {
		dialect                     Dialect
		rowLock, skipLocked, bigInt string
		arrays                      bool
		uuid                        any
		confirms                    bool
		now, after                  string
	}{
		{MySQL, " FOR UPDATE", " FOR UPDATE SKIP LOCKED", "SIGNED", false, id[:], false, "UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6) + INTERVAL 1500000 MICROSECOND"},
		{Postgres, " FOR UPDATE", " FOR UPDATE SKIP LOCKED", "BIGINT", true, id.String(), true, "clock_timestamp()", "clock_timestamp() + INTERVAL '1500 milliseconds'"},
		{SQLite, "", "", "BIGINT", false, id[:], false, "strftime('%Y-%m-%d %H:%M:%f+00:00', 'now')", "strftime('%Y-%m-%d %H:%M:%f+00:00', 'now', '+1.500 seconds')"},
	} {
		t.Run(string(test.dialect), func(t *testing.T) {
			d := test.dialect
			for method, pair := range map[string]struct{ got, want any }{
				"RowLock":            {d.RowLock(), test.rowLock},
				"SkipLocked":         {New(nil, d).SkipLocked(), test.skipLocked},
				"SkipLocked without": {New(nil, d).Without(Lacks{SkipLocked: true}).SkipLocked(), test.rowLock},
				"BigInt":             {d.BigInt(), test.bigInt},
				"Now":                {d.Now(), test.now},
				"After":              {d.After(1500 * time.Millisecond), test.after},
				"Arrays":             {d.Arrays(), test.arrays},
				"UUID":               {d.UUID(id), test.uuid},
				"confirmation":       {d.confirmation() != "", test.confirms},
			} {
				if !reflect.DeepEqual(pair.got, pair.want) {
					t.Errorf("%s: %#v, want %#v", method, pair.got, pair.want)
				}
			}
		})
	}
}

func TestNumbered(t *testing.T) {
	for sql, want := range map[string]string{
		"":                       "",
		"SELECT 1":               "SELECT 1",
		"SELECT $1":              "SELECT $1",
		"a = ? AND b IN (?, ?)":  "a = $1 AND b IN ($2, $3)",
		strings.Repeat("?,", 11): "$1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,",
	} {
		statements := []Statement{{SQL: sql}, {SQL: "b = ?"}}
		if got := numbered(statements); got[0].SQL != want || got[1].SQL != "b = $1" || statements[0].SQL != sql {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}

func TestAppendTime(t *testing.T) {
	for _, test := range []struct {
		time          time.Time
		mysql, others string
	}{
		{time.Time{}, "NULL", "NULL"},
		{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "20260102030405.000000", "'2026-01-02 03:04:05+00:00'"},
		{time.Date(2026, 1, 2, 3, 4, 5, 120_000, time.UTC), "20260102030405.000120", "'2026-01-02 03:04:05.00012+00:00'"},
		{time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.UTC), "20261231235959.999999", "'2026-12-31 23:59:59.999999+00:00'"},
		{time.Date(2026, 12, 31, 20, 0, 0, 0, time.FixedZone("", -8*3600)), "20270101040000.000000", "'2027-01-01 04:00:00+00:00'"},
	} {
		for dialect, want := range map[Dialect]string{MySQL: test.mysql, Postgres: test.others, SQLite: test.others} {
			if got := string(dialect.AppendTime([]byte("a"), test.time)); got != "a"+want {
				t.Errorf("%s: AppendTime(%v) = %s, want a%s", dialect, test.time, got, want)
			}
		}
	}
}
