package assembly

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/store"
)

// Stores are the open stores of one instance.
type Stores struct {
	SQL   *store.SQL
	Redis redis.UniversalClient // nil if the strategy has no gate
	close func() error
}

// OpenStores opens the stores that p names, or the embedded pair. It creates a missing
// SQLite file only if p.Migrate is set. Slow statements are logged to log. The errors name
// the flags --db and --redis; a store.ErrBadURL is a mistake in one of them.
func OpenStores(ctx context.Context, p Parts, log *slog.Logger) (Stores, error) {
	open := openNamed
	if p.Embedded() {
		open = openEmbedded
	}
	s, err := open(ctx, p)
	if err != nil {
		return Stores{}, err
	}
	s.SQL.LogTo(log)
	return s, nil
}

func openEmbedded(ctx context.Context, p Parts) (s Stores, err error) {
	pair, err := store.OpenEmbedded(ctx)
	if err != nil {
		return s, err
	}
	s = Stores{SQL: pair.SQL(), close: pair.Close}
	if p.Strategy.HasGate() {
		s.Redis = pair.Redis()
	}
	return s, nil
}

// openNamed opens the database of p.DB, and the Redis of the gate.
func openNamed(ctx context.Context, p Parts) (s Stores, err error) {
	if !p.Migrate {
		if err := CheckFile(p.DB); err != nil {
			return s, err
		}
	}
	if s.SQL, err = store.OpenSQL(ctx, p.DB); err != nil {
		return s, fmt.Errorf("--db: %w", err)
	}
	client, closeRedis, err := openRedis(ctx, p)
	if err != nil {
		return s, errors.Join(err, s.SQL.Close())
	}
	s.Redis, s.close = client, func() error { return errors.Join(closeRedis(), s.SQL.Close()) }
	return s, nil
}

// openRedis opens the Redis of the gate: that of p.Redis, or one in this process. client is
// nil if there is no gate.
func openRedis(ctx context.Context, p Parts) (client redis.UniversalClient, close func() error, err error) {
	switch {
	case !p.Strategy.HasGate():
		return nil, func() error { return nil }, nil
	case p.Redis == "":
		inProcess, err := store.OpenInProcessRedis(ctx)
		if err != nil {
			return nil, nil, err
		}
		return inProcess.Client(), inProcess.Close, nil
	}
	if client, err = store.OpenRedis(ctx, p.Redis); err != nil {
		return nil, nil, fmt.Errorf("--redis: %w", err)
	}
	if !p.Guard {
		if err := store.RefuseWithoutGuard(ctx, client); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("--guard off: %w", err), client.Close())
		}
	}
	return client, client.Close, nil
}

// Close closes the stores. No instance may use them any more.
func (s Stores) Close() error { return s.close() }

// CheckFile returns an error if db is the URL of a SQLite file that does not exist.
func CheckFile(db string) error {
	err := store.CheckFile(db)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--db: %w; api migrate up with the same --db creates it", err)
	case err != nil:
		return fmt.Errorf("--db: %w", err)
	}
	return nil
}

// PrepareSchema migrates the schema if migrate is set. It returns an error if the schema
// is not the one that this program needs.
func (s Stores) PrepareSchema(ctx context.Context, migrate bool) error {
	if migrate {
		if err := s.SQL.MigrateUp(ctx); err != nil {
			return err
		}
	}
	err := s.SQL.CheckSchema(ctx)
	if errors.Is(err, store.ErrSchemaOld) || errors.Is(err, store.ErrSchemaDirty) {
		return fmt.Errorf("%w; %s", err, s.SQL.FixSchema(err))
	}
	return err
}
