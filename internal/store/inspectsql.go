package store

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

const fixDurability = "set it as docs/engines.md says: a 201 is as durable as a commit"

func (s *SQL) inspectMySQL(ctx context.Context, connections int) (found Findings, err error) {
	v, err := s.mysqlSettings(ctx)
	if err != nil {
		return nil, err
	}
	status, err := s.settings(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")
	if err != nil {
		return nil, err
	}
	found.OK("%s is %s %s, %s", s.target, s.engine.product(), v["version"], mysqlReplication(v))
	found = append(found, mysqlDurability(s.target, v)...)
	if v["read_only"] != "OFF" {
		found.Problem("use the address of the primary, or end the switchover", "%s is read-only", s.target)
	}
	for _, name := range []string{"tx_isolation", "transaction_isolation"} {
		if level, known := v[name]; known && level != "READ-COMMITTED" {
			found.Warn("remove "+name+" from the URL", "the sessions run at %s", level)
			break
		}
	}
	if !strings.Contains(v["sql_mode"], "STRICT_TRANS_TABLES") {
		found.Warn("remove sql_mode from the URL", "the sessions run without STRICT_TRANS_TABLES")
	}
	found.checkConnections(s.target, connections, number(status["Threads_connected"]), number(v["max_connections"]))
	return s.checkEngines(ctx, found)
}

// product returns the name of the engine for use in a sentence.
func (e sqlEngine) product() string {
	if e.tested {
		return e.name
	}
	return e.name + ", which is not tested: version"
}

// mysqlReplication describes the replication of a server with these variables.
func mysqlReplication(v map[string]string) string {
	switch {
	case v["aurora_version"] != "":
		return "Aurora, which is not tested"
	case v["wsrep_provider"] != "" && v["wsrep_provider"] != "none":
		return "a Galera node"
	case v["group_replication_group_name"] != "":
		return "Group Replication, which is not tested"
	case v["log_bin"] == "ON":
		return "binary log"
	}
	return "no replication"
}

// mysqlSettings reads settings of the server, and those of a session that a URL can change.
// If it fails, it also returns what it could read.
func (s *SQL) mysqlSettings(ctx context.Context) (map[string]string, error) {
	v, err := s.settings(ctx, `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit',
		'log_bin', 'sync_binlog', 'innodb_doublewrite', 'max_connections', 'read_only', 'wsrep_provider', 'group_replication_group_name', 'aurora_version')`)
	if err != nil {
		return v, err
	}
	session, err := s.settings(ctx, "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation', 'sql_mode')")
	maps.Copy(v, session)
	return v, err
}

func (s *SQL) describeMySQL(ctx context.Context) (version, isolation, replication string, err error) {
	v, err := s.mysqlSettings(ctx)
	replication = mysqlReplication(v)
	if v["read_only"] != "OFF" {
		replication += ", read-only"
	}
	return v["version"], cmp.Or(v["transaction_isolation"], v["tx_isolation"]), replication, err
}

func (s *SQL) describePostgres(ctx context.Context) (version, isolation, replication string, err error) {
	row := s.pool.QueryRowContext(ctx, "SELECT current_setting('server_version'), current_setting('transaction_isolation')")
	if err := row.Scan(&version, &isolation); err != nil {
		return "", "", "", err
	}
	if !s.engine.tested {
		version = s.version // server_version is only the version that the engine is compatible with
	}
	row = s.pool.QueryRowContext(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN 'a standby' ELSE 'primary, standbys: ' || (SELECT count(*) FROM pg_stat_replication) ||
		CASE WHEN current_setting('synchronous_standby_names') <> '' THEN ', synchronous' ELSE '' END END`)
	err = row.Scan(&replication)
	return version, isolation, replication, err
}

func (s *SQL) describeSQLite(ctx context.Context) (version, isolation, replication string, err error) {
	err = s.pool.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version)
	return version, "serializable", "none", err
}

// mysqlDurability returns the settings that lose commits in a crash.
func mysqlDurability(target string, v map[string]string) (found Findings) {
	if flush := v["innodb_flush_log_at_trx_commit"]; flush != "1" {
		found.Problem(fixDurability, "%s runs with innodb_flush_log_at_trx_commit=%s: a crash loses about the last second of answered orders", target, flush)
	}
	if v["log_bin"] == "ON" && v["sync_binlog"] != "1" {
		found.Warn("set it to 1", "%s runs with sync_binlog=%s: after a crash of the machine, replicas may differ from it", target, v["sync_binlog"])
	}
	if v["innodb_doublewrite"] == "OFF" {
		found.Warn("set it to ON, unless the file system writes each page completely or not at all", "%s runs with innodb_doublewrite=OFF: a crash may damage pages", target)
	}
	return found
}

// checkEngines finds tables without transactions.
func (s *SQL) checkEngines(ctx context.Context, found Findings) (Findings, error) {
	engines, err := s.settings(ctx, "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB'")
	for table, engine := range engines {
		found.Problem("ALTER TABLE "+table+" ENGINE=InnoDB", "table %s uses %s, which has no transactions", table, engine)
	}
	return found, err
}

func (s *SQL) inspectPostgres(ctx context.Context, connections int) (found Findings, err error) {
	v, err := s.settings(ctx, `SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes',
			'max_connections', 'superuser_reserved_connections', 'default_transaction_isolation', 'transaction_read_only', 'synchronous_standby_names',
			'lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')
		UNION ALL SELECT 'recovery', pg_is_in_recovery()::text
		UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication
		UNION ALL SELECT 'connected', count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'`)
	if err != nil {
		return nil, err
	}
	pooled := ""
	if s.pooled {
		pooled = ", behind a pooler"
	}
	version := v["server_version"]
	if !s.engine.tested {
		version = s.version
	}
	found.OK("%s is %s %s%s", s.target, s.engine.product(), version, pooled)
	found = append(found, postgresDurability(s.target, v)...)
	switch {
	case v["recovery"] == "true":
		found.Problem("use the address of the primary, or add target_session_attrs=read-write to the URL", "%s is a standby", s.target)
	case v["transaction_read_only"] == "on":
		found.Problem("set default_transaction_read_only=off", "%s is read-only", s.target)
	}
	if level := v["default_transaction_isolation"]; level != "read committed" {
		fix := "remove default_transaction_isolation from the URL"
		if s.pooled {
			fix = "set it with ALTER ROLE (docs/engines.md)"
		}
		found.Warn(fix, "the sessions run at %s", level)
	}
	for _, name := range []string{"lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"} {
		if v[name] == "0" {
			found.Warn("set "+name+" with ALTER ROLE, or remove it from the URL (docs/engines.md)", "the sessions have no %s: a stopped instance blocks the others", name)
		}
	}
	if !s.pooled { // clients of a pooler share its connections
		found.checkConnections(s.target, connections, number(v["connected"]), number(v["max_connections"])-number(v["superuser_reserved_connections"]))
	}
	return found, nil
}

// postgresDurability returns the settings that lose commits in a crash, or make commits wait.
func postgresDurability(target string, v map[string]string) (found Findings) {
	if v["fsync"] == "off" {
		found.Problem(fixDurability, "%s runs with fsync=off: a crash of the machine may destroy the database", target)
	}
	if v["full_page_writes"] == "off" {
		found.Warn("set it to on, unless the file system writes each page completely or not at all", "%s runs with full_page_writes=off: a crash may damage pages", target)
	}
	standby := v["synchronous_standby_names"] != ""
	switch commit := v["synchronous_commit"]; {
	case commit == "off":
		found.Problem(fixDurability, "%s runs with synchronous_commit=off: a crash loses the latest answered orders", target)
	case standby && commit == "local":
		found.Warn("set it to on", "%s runs with synchronous_commit=local: a failover loses the latest answered orders", target)
	case standby && v["standbys"] == "0":
		found.Problem("start the standby, or empty synchronous_standby_names", "no standby is connected to %s: every commit waits for one", target)
	}
	return found
}

func (s *SQL) inspectSQLite(ctx context.Context, _ int) (found Findings, err error) {
	var version, journal string
	if err := s.pool.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); err != nil {
		return nil, err
	}
	if err := s.pool.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return nil, err
	}
	found.OK("%s, version %s, journal mode %s", s.target, version, journal)
	if s.unsynced {
		found.Problem("remove synchronous from the URL: it is FULL by default", "the URL lowers synchronous: a crash of the machine loses answered orders")
	}
	return found, nil
}

// Offset reads the clock of the database.
func (s *SQL) Offset(ctx context.Context) (Offset, error) {
	start := time.Now()
	read, err := s.Ledger().Now(ctx)
	if err != nil {
		return Offset{}, s.failed("reading the clock of", err)
	}
	return Offset{s.target, offset(start, read)}, nil
}

// Inspect reports what the database is, and which of its settings do not suit a ledger. It changes
// nothing. connections is the number of connections that an instance opens besides its pool.
func (s *SQL) Inspect(ctx context.Context, connections int) Findings {
	inspect := map[sqltx.Dialect]func(context.Context, int) (Findings, error){
		sqltx.MySQL: s.inspectMySQL, sqltx.Postgres: s.inspectPostgres, sqltx.SQLite: s.inspectSQLite,
	}[s.dialect]
	found, err := inspect(ctx, poolSize+connections)
	if err != nil {
		found.Problem("check the server and the rights of the user", "%v", s.failed("reading the settings of", err))
	}
	return found
}

// settings reads pairs of a name and a value.
func (s *SQL) settings(ctx context.Context, query string) (map[string]string, error) {
	pairs, err := sqltx.ReadAll(ctx, s.Ledger(), func(pair *[2]string) []any { return []any{&pair[0], &pair[1]} }, query)
	values := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		values[pair[0]] = pair[1]
	}
	return values, err
}

// checkConnections compares the connections that an instance opens with those that the
// server has left.
func (f *Findings) checkConnections(target string, needed int, used, limit float64) {
	switch left := limit - used; {
	case limit <= 0:
	case limit < float64(needed):
		f.Problem("raise max_connections", "%s allows %.0f connections; an instance opens up to %d", target, limit, needed)
	case left < float64(needed):
		f.Warn("raise max_connections, unless other connections are about to end", "%s has %.0f of %.0f connections left; an instance opens up to %d", target, left, limit, needed)
	}
}
