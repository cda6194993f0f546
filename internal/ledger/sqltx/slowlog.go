package sqltx

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// slowStatement is the duration from which statements are logged.
const slowStatement = time.Second

// SlowLog returns a gorm logger that writes statements slower than 1 s to log,
// without their values, and nothing else: callers decide which errors to log.
func SlowLog(log *slog.Logger) logger.Interface { return slowLog{log} }

type slowLog struct{ log *slog.Logger }

var _ gorm.ParamsFilter = slowLog{}

func (l slowLog) LogMode(logger.LogLevel) logger.Interface { return l }

func (slowLog) Info(context.Context, string, ...any)  {}
func (slowLog) Warn(context.Context, string, ...any)  {}
func (slowLog) Error(context.Context, string, ...any) {}

func (l slowLog) Trace(ctx context.Context, begin time.Time, statement func() (string, int64), err error) {
	elapsed := time.Since(begin)
	if elapsed < slowStatement || errors.Is(err, context.Canceled) {
		return
	}
	text, rows := statement()
	attrs := []any{"sql", text}
	if rows >= 0 {
		attrs = append(attrs, "rows", rows)
	}
	// Package loglimit counts warnings that have an error, so each line has one, even nil.
	attrs = append(attrs, "seconds", elapsed.Seconds(), "error", err)
	l.log.WarnContext(ctx, "slow statement", attrs...)
}

// ParamsFilter keeps values out of the log.
func (slowLog) ParamsFilter(_ context.Context, sql string, _ ...any) (string, []any) { return sql, nil }
