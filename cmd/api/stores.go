package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// stores are the open stores of one instance.
type stores struct {
	sql   *store.SQL
	redis redis.UniversalClient // nil if none is needed
	close func() error
}

// openStores opens the stores that the flags name, or the embedded pair.
func openStores(ctx context.Context, c config) (s stores, err error) {
	if c.embedded() {
		pair, err := store.OpenEmbedded(ctx)
		if err != nil {
			return stores{}, err
		}
		s = stores{sql: pair.SQL(), close: pair.Close}
		if c.strategy.HasGate() {
			s.redis = pair.Redis()
		}
		return s, nil
	}
	if err := checkFile(c); err != nil {
		return stores{}, err
	}
	sql, err := store.OpenSQL(ctx, c.DB)
	if err != nil {
		return stores{}, named("--db", err)
	}
	s = stores{sql: sql, close: sql.Close}
	switch {
	case !c.strategy.HasGate():
		return s, nil
	case c.Redis == "":
		inProcess, err := store.OpenInProcessRedis(ctx)
		if err != nil {
			return stores{}, errors.Join(err, sql.Close())
		}
		s.redis = inProcess.Client()
		s.close = func() error { return errors.Join(inProcess.Close(), sql.Close()) }
		return s, nil
	}
	client, err := store.OpenRedis(ctx, c.Redis)
	if err != nil {
		return stores{}, errors.Join(named("--redis", err), sql.Close())
	}
	s.redis = client
	s.close = func() error { return errors.Join(client.Close(), sql.Close()) }
	return s, nil
}

// openLedger opens the stores and prepares the schema. It returns the ledger's ID, too.
func openLedger(ctx context.Context, c config, log *slog.Logger) (s stores, id uuid.UUID, err error) {
	if s, err = openStores(ctx, c); err != nil {
		return stores{}, uuid.Nil, err
	}
	s.sql.LogTo(log)
	if err = prepareSchema(ctx, c, s.sql); err == nil {
		id, err = s.sql.LedgerID(ctx)
	}
	if err != nil {
		return stores{}, uuid.Nil, errors.Join(err, s.close())
	}
	return s, id, nil
}

// named adds the flag that an error concerns. A URL that cannot be used is a usage
// error.
func named(flag string, err error) error {
	if errors.Is(err, store.ErrBadURL) {
		return commandline.Usagef("%s: %w", flag, err)
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// prepareSchema migrates the schema if --migrate is on, and returns an error if the
// schema is not the one that this program needs.
func prepareSchema(ctx context.Context, c config, sql *store.SQL) error {
	if c.Migrate {
		if err := sql.MigrateUp(ctx); err != nil {
			return err
		}
	}
	err := sql.CheckSchema(ctx)
	switch {
	case errors.Is(err, store.ErrSchemaOld):
		return fmt.Errorf("%w; run api migrate up with the same --db, or serve with --migrate", err)
	case errors.Is(err, store.ErrSchemaDirty):
		return fmt.Errorf("%w; %s, with the same --db", err, mendDirty)
	}
	return err
}

// schemaReady returns why the schema cannot be used now. It may be newer than this
// program: a newer one has migrated it and takes over, while this one still serves.
func schemaReady(ctx context.Context, sql *store.SQL) error {
	err := sql.CheckSchema(ctx)
	if errors.Is(err, store.ErrSchemaNew) {
		return nil
	}
	return err
}
