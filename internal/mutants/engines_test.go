//go:build mutants

package mutants

const storeEngines = "internal/store/engines.go"

// engines are mutants of the checks that refuse unsuitable stores.
var engines = []mutant{
	{"an engine is what its redis_version says", storeEngines, "ok && other != \"redis\" && other != \"gcc\" {", "ok && other == \"\" {", "internal/store TestRedisEngines/Dragonfly"},
	{"a server without a run ID is Redis", storeEngines, "fields[\"redis_version\"] != \"\" && fields[\"run_id\"] != \"\":", "fields[\"redis_version\"] != \"\":", "internal/store TestRedisEngines/no_run_ID"},
	{"KeyDB is Redis", storeEngines, "case strings.Contains(path.Base(fields[\"executable\"]), \"keydb\"):", "case path.Base(fields[\"executable\"]) == \"\":", "internal/store TestRedisEngines/KeyDB"},
	{"an engine that is not in the table is safe", storeEngines, "return s.engine.forgets > 0 &&", "return", "internal/store TestRedisEngines/another_engine"},
	{"a version that cannot be read is safe", storeEngines, "majorOf(s.version) >= s.engine.forgets", "!olderThan(s.version, s.engine.forgets, 0)", "internal/store TestRedisEngines/a_version_that_cannot_be_read"},
	{"a version that cannot be read is that of an early Redis", storeEngines, "s.engine.watched && majorOf(s.version) > 0:", "s.engine.watched:", "internal/store TestRedisEngines/a_version_that_cannot_be_read"},
	{"a master of a cluster is refused by a client of clusters", "internal/store/inspectredis.go", "fields[\"cluster_enabled\"] == \"1\" && !cluster:", "fields[\"cluster_enabled\"] == \"1\":", "internal/store TestRedisServer_Inspect"},
	{"a Redis is nearly full when it is full", "internal/store/inspectredis.go", "used > maxMemoryUse*limit", "used > limit", "internal/store TestRedisServer_Inspect"},
	{"a database with just enough connections is too small", "internal/store/inspectsql.go", "case limit < float64(needed):", "case limit <= float64(needed):", "internal/store TestCheckConnections"},
	{"a server that says nothing is safe", storeEngines, "if err != nil {\n\t\treturn fmt.Errorf(\"%w; without it,", "if false {\n\t\treturn fmt.Errorf(\"%w; without it,", "internal/store TestRefuseWithoutGuard_Silent"},
	{"the doctor does not refuse an engine", "internal/store/inspectredis.go", "case refused && !guard:", "case refused && guard:", "internal/store TestRedisEngines/Garnet"},
	{"the doctor forgets that the guard is off", "internal/doctor/stores.go", "Guard: e.o.Guard}", "Guard: true}", "cmd/api TestEngines/Dragonfly_without_guard"},
	{"serve starts on every engine without guard", "internal/assembly/stores.go", "if !p.Guard {", "if false {", "cmd/api TestEngines/Dragonfly_without_guard"},
	{"the in-process Redis does not say what it is", "internal/store/embedded.go", "mini.Server().SetPreHook(describeInProcess)", "_ = describeInProcess", "internal/store TestRedisEngine/InProcess"},
	{"a lock is taken on every database", "internal/assembly/backends/flags.go", "if err := store.CheckLocks(ctx, servers.SQL, db); err != nil {", "if err := error(nil); err != nil {", "cmd/api TestEngines_Locks"},
	{"every engine's locks are as ours", storeEngines, "e.locks != asOurs {", "e.locks == missing+1 {", "internal/store TestSessionLocks/TiDB"},
	{"a migration without locks", "internal/store/migrate.go", "if s.engine.locks == missing {", "if false {", "internal/store TestSessionLocks/CockroachDB"},
	{"every engine skips locked rows", "internal/store/sql.go", ".Without(s.engine.lacks)", "", "internal/ledger TestEngines/as_TiDB"},
	{"an engine without standbys waits for one", "internal/ledger/sqltx/db.go", "statement == \"\" || db.lacks.Standbys {", "statement == \"\" {", "internal/ledger TestEngines/as_CockroachDB"},
	{"a transaction forgets what the engine lacks", "internal/ledger/sqltx/db.go", "runner{db.gorm, db.dialect, db.lacks, t}", "runner{db.gorm, db.dialect, Lacks{}, t}", "internal/ledger TestEngines/as_TiDB"},
	{"a serialization failure is not tried again", sqltxErrors, "return e.Code == \"40001\" || ", "return ", "internal/ledger TestConflictAtCommit/tried_again"},
	{"a database that does not answer has reliable locks", storeEngines, "return fmt.Errorf(\"asking the database for its version: %w\", err)", "_ = err", "internal/store TestSessionLocks/PostgreSQL"},
	{"an engine that cannot be described says nothing of it", storeEngines, "replication = unknownEngine + \", \" + err.Error()", "_ = err", "internal/store TestInspect_Unanswered/SQLite"},
	{"a Redis that does not answer has no engine", storeEngines, "\t\tnames = append(names, unknownEngine)\n", "", "internal/store TestInspect_Unanswered"},
}
