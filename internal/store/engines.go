package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

// Engine is a store's description of itself: the product, and how it runs.
type Engine struct {
	Name        string // name of the product; "unknown" if the store does not report it
	Version     string
	Isolation   string // isolation level of the ledger's sessions; empty for Redis
	Pooled      bool   // connections go through a pooler
	Replication string // for example "primary, standbys: 1"
}

const unknownEngine = "unknown"

// Attrs returns e as attributes of a line of the log.
func (e Engine) Attrs() []any {
	attrs := []any{"engine", e.Name, "version", e.Version}
	if e.Isolation != "" {
		attrs = append(attrs, "isolation", e.Isolation, "pooler", e.Pooled)
	}
	return append(attrs, "replication", e.Replication)
}

// redisEngine is a row of the table of servers that speak the protocol of Redis.
type redisEngine struct {
	key  string // the engine's version is in the field KEY_version of INFO's section server
	name string
	// forgets is the first major version that neither saves scripts nor copies them to replicas.
	// Generations rely on that (section 4 of docs/protocol.md). 0 means that no such version is
	// known.
	forgets int
	// watched means that versions before forgets get a new run ID when they restart. WatchRedis
	// notices that within a second.
	watched bool
}

var redisEngines = []redisEngine{
	{key: "redis", name: "Redis", forgets: 7, watched: true},
	{key: "valkey", name: "Valkey", forgets: 7},
	{key: "dragonfly", name: "Dragonfly"}, // Dragonfly saves scripts in its snapshots, and has no run ID
	{key: "keydb", name: "KeyDB"},         // behaves as Redis 6
	{key: "kvrocks", name: "Kvrocks"},
	{key: "garnet", name: "Garnet"},
	{key: "miniredis", name: "in-process Redis", forgets: 2}, // keeps nothing on disk; see describeInProcess
}

// redisServer is a master of the gate, as INFO describes it.
type redisServer struct {
	address string
	engine  redisEngine
	version string
	fields  map[string]string // fields of all sections
}

// recogniseRedis returns the engine that INFO names in its section server, and its version.
// redis_version is only the version of Redis that an engine is compatible with. An engine other
// than Redis has its own version in another field.
func recogniseRedis(fields map[string]string) (e redisEngine, version string) {
	key := strings.ToLower(fields["server_name"])
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if other, ok := strings.CutSuffix(field, "_version"); ok && other != "redis" && other != "gcc" {
			key = other
		}
	}
	switch {
	case key != "":
	case strings.Contains(path.Base(fields["executable"]), "keydb"): // it says so nowhere else in this section
		key = "keydb"
	case fields["redis_version"] != "" && fields["run_id"] != "":
		key = "redis"
	}
	version = cmp.Or(fields[key+"_version"], fields["redis_version"])
	if i := slices.IndexFunc(redisEngines, func(e redisEngine) bool { return e.key == key }); i >= 0 {
		return redisEngines[i], version
	}
	return redisEngine{key: key, name: cmp.Or(key, unknownEngine)}, version
}

// forgetsScripts reports whether the server is known to lose its scripts when it
// restarts, and when it is promoted.
func (s redisServer) forgetsScripts() bool {
	return s.engine.forgets > 0 && majorOf(s.version) >= s.engine.forgets
}

// majorOf returns the major version, or 0 if it cannot be read.
func majorOf(version string) int {
	major, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(major)
	return n
}

// fixScripts tells the operator what to do about a server that keeps scripts.
const fixScripts = "use Redis 7 or later, or Valkey"

// unsafeScripts describes the risk of a server that keeps scripts. It is empty if the server does
// not keep them. refused means that the service refuses to use the server without the guard.
func (s redisServer) unsafeScripts() (text string, refused bool) {
	switch {
	case s.forgetsScripts():
		return "", false
	case s.engine.watched && majorOf(s.version) > 0:
		return fmt.Sprintf("Redis at %s is version %s, which saves scripts in snapshots; after a restart from a snapshot the gate may use old counts for about a second, until the service notices the new run ID",
			s.address, s.version), false
	}
	return fmt.Sprintf("the Redis at %s is %s, which is not known to lose its scripts when it restarts; after a restart with old data, or a failover, the gate may use old counts, and only the guard keeps units from being sold twice",
		s.address, strings.TrimSpace(s.engine.name+" "+s.version)), true
}

// redisServers reads these sections of INFO from each master of the client, in the order of their
// addresses. It leaves out masters that do not answer, and err is then the error of one.
func redisServers(ctx context.Context, client redis.UniversalClient, sections ...string) (servers []redisServer, err error) {
	servers, err = askMasters(ctx, client, func(ctx context.Context, node *redis.Client) (redisServer, error) {
		return askRedis(ctx, node, sections...)
	})
	slices.SortFunc(servers, func(a, b redisServer) int { return strings.Compare(a.address, b.address) })
	return servers, err
}

// askRedis reads these sections of INFO, and the section server, from a master.
func askRedis(ctx context.Context, node *redis.Client, sections ...string) (s redisServer, err error) {
	s = redisServer{address: node.Options().Addr, engine: redisEngine{name: unknownEngine}}
	if s.fields, err = info(ctx, node, append([]string{"server"}, sections...)...); err != nil {
		return s, fmt.Errorf("Redis at %s does not answer INFO: %w", s.address, err)
	}
	s.engine, s.version = recogniseRedis(s.fields)
	return s, nil
}

// RedisEngine returns the engine of the client's masters. A master that does not answer INFO is
// unknown.
func RedisEngine(ctx context.Context, client redis.UniversalClient) (e Engine) {
	servers, err := redisServers(ctx, client, "replication")
	var names, versions []string
	replicas := 0.0
	for _, s := range servers {
		names, versions = append(names, s.engine.name), append(versions, s.version)
		replicas += number(s.fields["connected_slaves"])
	}
	if err != nil {
		names = append(names, unknownEngine)
	}
	distinct := func(values []string) string {
		slices.Sort(values)
		return strings.Join(slices.Compact(values), ", ")
	}
	e = Engine{Name: distinct(names), Version: distinct(versions), Replication: fmt.Sprintf("masters: %d, replicas: %.0f", len(servers), replicas)}
	if err != nil {
		e.Replication += ", " + err.Error()
	}
	return e
}

// RefuseWithoutGuard returns an error if a master of the client must not be used without the guard.
// Such a master is not known to lose its scripts when it restarts, or cannot be identified.
func RefuseWithoutGuard(ctx context.Context, client redis.UniversalClient) error {
	servers, err := redisServers(ctx, client)
	for _, s := range servers {
		if text, refused := s.unsafeScripts(); refused {
			return fmt.Errorf("%s; set --guard on, or %s", text, fixScripts)
		}
	}
	if err != nil {
		return fmt.Errorf("%w; without it, only the guard keeps units from being sold twice: set --guard on, or allow INFO", err)
	}
	return nil
}

// sqlEngine is a row of the table of databases.
type sqlEngine struct {
	dialect sqltx.Dialect
	mark    string // a part of the text that version() returns, in lower case
	name    string
	tested  bool // our tests run on this engine
	lacks   sqltx.Lacks
	locks   lockRules
}

// lockRules are the rules of the locks of a database's sessions: GET_LOCK, and advisory
// locks.
type lockRules int

const (
	asOurs lockRules = iota // the rules of MySQL or PostgreSQL
	// differ means that the rules are too weak for --lock. They are enough for migrations, which
	// only wait.
	differ
	// missing means that the locks exclude nobody, or do not exist.
	missing
)

// sqlEngines lists the databases. The first row that matches counts.
var sqlEngines = []sqlEngine{
	// TiDB accepts SKIP LOCKED and locks nothing. Its GET_LOCK waits for at least a second.
	{dialect: sqltx.MySQL, mark: "-tidb-", name: "TiDB", lacks: sqltx.Lacks{SkipLocked: true}, locks: differ},
	{dialect: sqltx.MySQL, mark: "vitess", name: "Vitess", locks: differ}, // GET_LOCK is that of one of its servers
	{dialect: sqltx.MySQL, mark: "mariadb", name: "MariaDB", tested: true},
	{dialect: sqltx.MySQL, name: "MySQL"},
	{dialect: sqltx.Postgres, mark: "cockroachdb", name: "CockroachDB", lacks: sqltx.Lacks{Standbys: true}, locks: missing}, // advisory locks of CockroachDB do not exclude other sessions
	{dialect: sqltx.Postgres, mark: "-yb-", name: "YugabyteDB", lacks: sqltx.Lacks{Standbys: true}, locks: missing},
	{dialect: sqltx.Postgres, name: "PostgreSQL", tested: true},
	{dialect: sqltx.SQLite, name: "SQLite", tested: true},
}

// recogniseSQL returns the engine for the text that version() returned.
func recogniseSQL(dialect sqltx.Dialect, version string) sqlEngine {
	version = strings.ToLower(version)
	return sqlEngines[slices.IndexFunc(sqlEngines, func(e sqlEngine) bool {
		return e.dialect == dialect && strings.Contains(version, e.mark)
	})]
}

// Engine returns the database's description of itself, with "unknown" for missing facts.
func (s *SQL) Engine(ctx context.Context) Engine {
	describe := map[sqltx.Dialect]func(context.Context) (version, isolation, replication string, err error){
		sqltx.MySQL: s.describeMySQL, sqltx.Postgres: s.describePostgres, sqltx.SQLite: s.describeSQLite,
	}[s.dialect]
	version, isolation, replication, err := describe(ctx)
	if err != nil {
		replication = unknownEngine + ", " + err.Error()
	}
	return Engine{
		Name: s.engine.name, Version: version, Isolation: cmp.Or(isolation, unknownEngine), Pooled: s.pooled, Replication: replication,
	}
}

// ErrNoLocks means that the session locks of the engine cannot be relied on.
var ErrNoLocks = errors.New("the locks of its sessions cannot be relied on")

// CheckLocks returns ErrNoLocks if session locks of the database at the URL do not exclude all
// other sessions. pool is one of OpenSessions.
func CheckLocks(ctx context.Context, pool *sql.DB, rawURL string) error {
	dialect := sqltx.Postgres
	if strings.HasPrefix(rawURL, "mysql:") {
		dialect = sqltx.MySQL
	}
	var version string
	if err := pool.QueryRowContext(ctx, "SELECT version()").Scan(&version); err != nil {
		return fmt.Errorf("asking the database for its version: %w", err)
	}
	if e := recogniseSQL(dialect, version); e.locks != asOurs {
		return fmt.Errorf("the database is %s: %w", e.name, ErrNoLocks)
	}
	return nil
}
