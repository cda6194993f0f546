package backends

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/session"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// minLease is the shortest --lease. A busy machine may renew a shorter one too
// late.
const minLease = 100 * time.Millisecond

// Flags are the flags that name a backend and its servers. Programs share them. --redis,
// the Redis of the backend redis, and --db, the database of the backends mysql and
// postgres, are flags of each program.
type Flags struct {
	Backend   string        `name:"lock" default:"${lock}" enum:"${locks}" help:"Backend of ${locked}: ${enum}."`
	Lease     time.Duration `default:"30s" help:"How long a lock stays held after its holder has stopped renewing it."`
	ZooKeeper string        `name:"zookeeper" placeholder:"SERVERS" help:"ZooKeeper servers: [user:password@]h1:p1,h2:p2[/path]; the path replaces /holdfast."`
	Etcd      string        `placeholder:"SERVERS" help:"etcd servers: [https://][user:password@]h1:p1,h2:p2[/path][?ca=file&cert=file&key=file]; the path replaces holdfast."`
	Redlock   string        `placeholder:"SERVERS" help:"Independent Redis servers, an odd number of at least 3: h1:p1,h2:p2,h3:p3."`
}

// Vars returns the variables in the tags of Flags. what says what the locks are for.
func Vars(what string) map[string]string {
	return map[string]string{"lock": Default, "locks": strings.Join(Names(), ", "), "locked": what}
}

// Addresses returns the values of the flags that belong to one backend only, by flag.
func (l *Flags) Addresses() map[string]string {
	return map[string]string{"zookeeper": l.ZooKeeper, "etcd": l.Etcd, "redlock": l.Redlock}
}

// Check returns an error for the first invalid flag or combination of flags. needed
// reports whether the program takes locks. db is its --db, the database of the backends
// mysql and postgres.
func (l *Flags) Check(needed bool, db string) error {
	backend, _ := Find(l.Backend)
	if l.Lease < minLease {
		return fmt.Errorf("--lease: %v is shorter than %v", l.Lease, minLease)
	}
	addresses := l.Addresses()
	address, own := addresses[backend.Flag]
	switch {
	case needed && backend.Flag == "db" && !strings.HasPrefix(db, backend.Name):
		return fmt.Errorf("--lock: %s needs a --db with the scheme %s://", l.Backend, l.Backend)
	case needed && own && address == "":
		return fmt.Errorf("--%s: required with --lock %s", backend.Flag, l.Backend)
	}
	for _, e := range Table() {
		if address := addresses[e.Flag]; address != "" {
			if err := e.check(address); err != nil {
				return fmt.Errorf("--%s: %w", e.Flag, err) // without the password of the address
			}
		}
	}
	return nil
}

// UsesRedis reports whether the locks are in the Redis of --redis.
func (l *Flags) UsesRedis() bool { return l.uses("redis") }

// UsesDatabase reports whether the locks are in the database of --db.
func (l *Flags) UsesDatabase() bool { return l.uses("db") }

func (l *Flags) uses(flag string) bool {
	backend, _ := Find(l.Backend)
	return backend.Flag == flag
}

// Open returns a Locker on the backend. client is the Redis of the backend redis, and db the URL of
// the database of the backends mysql and postgres. close ends the Locker's goroutines, and closes the
// connections that Open has opened.
func (l *Flags) Open(ctx context.Context, client goredis.UniversalClient, db string) (locker lock.Locker, close func() error, err error) {
	backend, _ := Find(l.Backend)
	opened := servers{Redis: client, ZooKeeper: l.ZooKeeper, Etcd: l.Etcd, Lease: l.Lease}
	closeServers := func() (err error) {
		for _, client := range opened.Redlock {
			err = errors.Join(err, client.Close())
		}
		if opened.SQL != nil {
			err = errors.Join(err, opened.SQL.Close())
		}
		return err
	}
	switch backend.Flag {
	case "redlock":
		if opened.Redlock, err = openRedlock(ctx, strings.Split(l.Redlock, ",")); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("--redlock: %w", err), closeServers())
		}
	case "db":
		if opened.SQL, err = store.OpenSessions(db, session.Dialed); err != nil {
			return nil, nil, fmt.Errorf("--db: %w", err)
		}
		if err := store.CheckLocks(ctx, opened.SQL, db); err != nil {
			if errors.Is(err, store.ErrNoLocks) {
				err = fmt.Errorf("%w; use another --lock", err)
			}
			return nil, nil, errors.Join(fmt.Errorf("--lock %s: %w", l.Backend, err), closeServers())
		}
	}
	locker, err = backend.open(ctx, opened)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("lock backend %s: %w", l.Backend, err), closeServers())
	}
	closeLocker := func() error { return nil }
	if closer, ok := locker.(io.Closer); ok {
		closeLocker = closer.Close
	}
	return locker, func() error { return errors.Join(closeLocker(), closeServers()) }, nil
}

// openRedlock returns clients of the servers, also after an error. A minority of the
// servers may fail to answer.
func openRedlock(ctx context.Context, servers []string) (clients []goredis.UniversalClient, err error) {
	for _, server := range servers {
		client, err := store.NewRedis("redis://" + server)
		if err != nil {
			return clients, err
		}
		clients = append(clients, client)
	}
	failures := make(chan error, len(clients))
	var pings sync.WaitGroup
	for i, client := range clients {
		pings.Go(func() {
			if err := client.Ping(ctx).Err(); err != nil {
				failures <- fmt.Errorf("connecting to Redis at %s: %w", servers[i], err)
			}
		})
	}
	pings.Wait()
	close(failures)
	if len(failures) <= len(clients)/2 {
		return clients, nil
	}
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	return clients, err
}
