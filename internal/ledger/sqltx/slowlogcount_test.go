package sqltx_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/loglimit"
)

// TestSlowLog_IsCounted checks that the service's log counts slow statements
// instead of writing a line for each, whether they succeed or fail.
func TestSlowLog_IsCounted(t *testing.T) {
	var log bytes.Buffer
	counting := loglimit.NewHandler(slog.NewTextHandler(&log, nil))
	defer counting.Close()
	slow := sqltx.SlowLog(slog.New(counting))
	for range 3 {
		slow.Trace(t.Context(), time.Now().Add(-2*time.Second), func() (string, int64) { return "SELECT 1", 1 }, nil)
	}
	if lines := strings.Count(log.String(), "slow statement"); lines != 1 {
		t.Errorf("%d lines:\n%s", lines, log.String())
	}
}
