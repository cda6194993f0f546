package store

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestLogTo: slow statements are told to the logger that was named, in seconds.
func TestLogTo(t *testing.T) {
	s, err := OpenSQL(t.Context(), testenv.SQLite(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var log bytes.Buffer
	s.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
	for _, took := range []time.Duration{slowStatement / 2, 2 * slowStatement} {
		s.DB().WithContext(t.Context()).Logger.Trace(t.Context(), time.Now().Add(-took), func() (string, int64) { return "SELECT 1", 1 }, nil)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="slow statement" sql="SELECT 1" rows=1 seconds=2.`) {
		t.Errorf("the log: %s", got)
	}
}
