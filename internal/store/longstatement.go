package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-stock/holdfast/internal/retry"
)

// pingPause is the pause between two pings of WhileAnswering.
const pingPause = time.Second

// errSilent means that the server has not answered a ping.
var errSilent = errors.New("the server does not answer")

// WhileAnswering runs do and pings the server meanwhile. The statements of do may take longer than
// the server may be silent. The context of do ends when ctx does, or when no ping has been answered
// within the bound. In the second case, an error of do is returned with the error that the server
// does not answer.
func (s *SQL) WhileAnswering(ctx context.Context, bound time.Duration, do func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	var pings sync.WaitGroup
	defer pings.Wait()
	defer end(nil)
	pings.Go(func() {
		if s.isSilent(ctx, bound) {
			end(errSilent)
		}
	})
	err := do(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSilent) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// isSilent pings the server, with pauses. It returns true once no ping has been answered within the
// bound, and false if ctx ends before that.
func (s *SQL) isSilent(ctx context.Context, bound time.Duration) bool {
	for since := time.Now(); ctx.Err() == nil; {
		answered := s.answers(ctx, since.Add(bound))
		if !answered && time.Since(since) >= bound {
			return true
		}
		_ = retry.Sleep(ctx, pingPause)
		if answered {
			since = time.Now()
		}
	}
	return false
}

// answers reports whether the server answers a ping before the deadline, even with an error. It
// returns false if the connection fails.
func (s *SQL) answers(ctx context.Context, deadline time.Time) bool {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := s.pool.PingContext(ctx)
	var (
		mysql    *driver.MySQLError
		postgres *pgconn.PgError
	)
	return err == nil || errors.As(err, &mysql) || errors.As(err, &postgres)
}
