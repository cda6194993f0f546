package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// clockTick is how often keys of the in-process Redis may expire.
const clockTick = 20 * time.Millisecond

// InProcessRedis is a Redis inside this process, on a loopback port of its own
// and behind a random password. It keeps nothing on disk.
type InProcessRedis struct {
	server *miniredis.Miniredis
	client redis.UniversalClient
	url    string
	stop   chan struct{}
	clock  sync.WaitGroup
	closed sync.Once
	err    error
}

// OpenInProcessRedis starts a Redis inside this process and connects to it.
func OpenInProcessRedis(ctx context.Context) (*InProcessRedis, error) {
	server := miniredis.NewMiniRedis()
	password := rand.Text()
	server.RequireAuth(password)
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("starting the in-process Redis: %w", err)
	}
	r := &InProcessRedis{server: server, stop: make(chan struct{})}
	r.clock.Go(r.tick)
	r.url = "redis://:" + password + "@" + server.Addr()
	client, err := OpenRedis(ctx, r.url)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.client = client
	return r, nil
}

// tick makes time pass for the server, whose keys do not expire by themselves.
func (r *InProcessRedis) tick() {
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-r.stop:
			return
		case <-ticker.C:
			now := time.Now() // a busy machine drops ticks, and time passes all the same
			r.server.FastForward(now.Sub(last))
			last = now
		}
	}
}

// URL is how other processes of this machine reach the server. It has the
// password.
func (r *InProcessRedis) URL() string { return r.url }

// Client returns the client of the server. Close closes it.
func (r *InProcessRedis) Client() redis.UniversalClient { return r.client }

// Close stops the server and forgets what it held. It may be called again.
func (r *InProcessRedis) Close() error {
	r.closed.Do(func() {
		if r.client != nil {
			r.err = r.client.Close()
		}
		close(r.stop)
		r.clock.Wait()
		r.server.Close()
	})
	return r.err
}

// embeddedFolder begins the names of the temporary folders.
const embeddedFolder = "holdfast-embedded-"

// Embedded is a pair of stores for trying out: an in-process Redis, and SQLite
// in a temporary folder with its schema in place. Close takes both away.
type Embedded struct {
	sql    *SQL
	redis  *InProcessRedis
	folder string
	claim  *os.File // says that the folder is in use; nil where there is no such thing
}

// OpenEmbedded opens the pair, and removes what killed processes left of theirs.
func OpenEmbedded(ctx context.Context) (*Embedded, error) {
	removeAbandoned()
	folder, err := os.MkdirTemp("", embeddedFolder)
	if err != nil {
		return nil, fmt.Errorf("making a folder for the embedded database: %w", err)
	}
	e := &Embedded{folder: folder}
	if e.claim, err = claim(folder); err != nil {
		return nil, errors.Join(fmt.Errorf("claiming the embedded database's folder: %w", err), e.Close())
	}
	if e.sql, err = openSQLite(ctx, filepath.Join(folder, "ledger.db"), "NORMAL", nil); err == nil {
		if err = e.sql.MigrateUp(ctx); err == nil {
			e.redis, err = OpenInProcessRedis(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// SQL returns the database, with its schema in place.
func (e *Embedded) SQL() *SQL { return e.sql }

// Redis returns the client of the in-process Redis.
func (e *Embedded) Redis() redis.UniversalClient { return e.redis.Client() }

// Close closes both stores and removes the folder.
func (e *Embedded) Close() error {
	var errs []error
	if e.redis != nil {
		errs = append(errs, e.redis.Close())
	}
	if e.sql != nil {
		errs = append(errs, e.sql.Close())
	}
	errs = append(errs, os.RemoveAll(e.folder))
	if e.claim != nil {
		errs = append(errs, e.claim.Close())
	}
	return errors.Join(errs...)
}
