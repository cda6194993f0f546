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
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// expiryInterval is the time between two checks for expired keys in the
// in-process Redis.
const expiryInterval = 20 * time.Millisecond

// InProcessRedis is a Redis inside this process. It listens on a free loopback
// port, requires a random password and keeps nothing on disk.
type InProcessRedis struct {
	server *miniredis.Miniredis
	client redis.UniversalClient
	url    string
	stop   chan struct{}
	expiry sync.WaitGroup
}

// OpenInProcessRedis starts a Redis inside this process and connects to it.
func OpenInProcessRedis(ctx context.Context) (*InProcessRedis, error) {
	mini := miniredis.NewMiniRedis()
	password := rand.Text()
	mini.RequireAuth(password)
	if err := mini.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("starting the in-process Redis: %w", err)
	}
	mini.Server().SetPreHook(describeInProcess)
	r := &InProcessRedis{server: mini, stop: make(chan struct{})}
	r.expiry.Go(r.advanceClock)
	r.url = "redis://:" + password + "@" + mini.Addr()
	client, err := OpenRedis(ctx, r.url)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.client = client
	return r, nil
}

// describeInProcess answers sections of INFO that miniredis lacks. A service in another process may
// use the server, and reads INFO to identify it.
func describeInProcess(peer *server.Peer, command string, args ...string) (done bool) {
	if command != "INFO" || len(args) != 1 {
		return false
	}
	switch args[0] {
	case "server":
		peer.WriteBulk("# Server\r\nminiredis_version:2\r\n")
	case "replication":
		peer.WriteBulk("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n")
	default:
		return false
	}
	return true
}

// advanceClock advances the server's clock until Close. Keys of miniredis expire
// only when its clock is advanced.
func (r *InProcessRedis) advanceClock() {
	ticker := time.NewTicker(expiryInterval)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-r.stop:
			return
		case <-ticker.C:
			now := time.Now() // not last+expiryInterval: the ticker drops ticks under load
			r.server.FastForward(now.Sub(last))
			last = now
		}
	}
}

// URL returns the server's URL, password included, for other processes of this
// machine.
func (r *InProcessRedis) URL() string { return r.url }

// Client returns the server's client. Close closes it.
func (r *InProcessRedis) Client() redis.UniversalClient { return r.client }

// Close stops the server and discards its data.
func (r *InProcessRedis) Close() (err error) {
	if r.client != nil {
		err = r.client.Close()
	}
	close(r.stop)
	r.expiry.Wait()
	r.server.Close()
	return err
}

// embeddedFolder is the prefix of the temporary folders' names.
const embeddedFolder = "holdfast-embedded-"

// Embedded is a pair of stores for trying the service out: an in-process Redis,
// and a migrated SQLite database in a temporary folder. Close removes both.
type Embedded struct {
	sql    *SQL
	redis  *InProcessRedis
	folder string
	claim  *os.File // locked while the folder is in use; nil on systems without file claims
}

// OpenEmbedded opens the pair. It also removes the folders of processes that
// were killed.
func OpenEmbedded(ctx context.Context) (*Embedded, error) {
	removeAbandoned()
	folder, err := os.MkdirTemp("", embeddedFolder)
	if err != nil {
		return nil, fmt.Errorf("creating a folder for the embedded database: %w", err)
	}
	e := &Embedded{folder: folder}
	if e.claim, err = claim(folder); err != nil {
		return nil, errors.Join(fmt.Errorf("claiming the embedded database's folder: %w", err), e.Close())
	}
	if e.sql, err = openSQLite(ctx, filepath.Join(folder, "ledger.db"), "NORMAL", nil); err == nil {
		// An empty file takes milliseconds, and golang-migrate 4.20 has a data race when it is
		// stopped.
		if err = e.sql.MigrateUp(context.WithoutCancel(ctx)); err == nil {
			e.redis, err = OpenInProcessRedis(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// SQL returns the database, which is migrated.
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
