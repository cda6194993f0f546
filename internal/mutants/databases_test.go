//go:build mutants

package mutants

const (
	transacting       = "internal/ledger/transact.go"
	sqltxDB           = "internal/ledger/sqltx/db.go"
	sqltxSlowLog      = "internal/ledger/sqltx/slowlog.go"
	sqltxTx           = "internal/ledger/sqltx/tx.go"
	sqltxErrors       = "internal/ledger/sqltx/errors.go"
	sqltxMySQL        = "internal/ledger/sqltx/mysql.go"
	sqltxPostgres     = "internal/ledger/sqltx/postgres.go"
	sqltxMySQLPrimary = "internal/ledger/sqltx/mysqlprimary.go"
	sqltxDialect      = "internal/ledger/sqltx/dialect.go"
	storeMySQL        = "internal/store/mysql.go"
	storePostgres     = "internal/store/postgres.go"

	migrateKilled  = "internal/store/migratekilled.go"
	migrateSteps   = "internal/store/migratesteps.go"
	migrateLosses  = "internal/store/migratelosses.go"
	migrateHistory = "internal/store/migratehistory.go"
)

// databases are mutants of the packages sqltx and store.
var databases = []mutant{
	{"a transaction commits after fewer rows", sqltxTx, "affected[0] != rows", "affected[0] == 0", "internal/ledger/sqltx TestCommitIf/SQLite"},
	{"a transaction commits after fewer rows, in one round trip", sqltxDB, "ROW_COUNT() = %d", "ROW_COUNT() <= %d", "internal/ledger/sqltx TestCommitIf/MariaDB"},
	{"a transaction commits after fewer rows, in one pipeline", sqltxDB, "count(*) = $%d", "count(*) <= $%d", "internal/ledger/sqltx TestCommitIf/PostgreSQL"},
	{"a cancelled statement of a pipeline is an unknown outcome", sqltxTx, "query: queryPostgres, open: openPostgres", "query: queryPostgres, open: func(context.Context, *sql.Conn) bool { return false }", "internal/ledger/sqltx TestTexts_RefusedInTheMiddle/PostgreSQL"},
	{"a quote is written as it is", sqltxDialect, "c == '-', c == '_'", "c == '-', c == '\\'', c == '_'", "internal/ledger/sqltx TestAppendText/SQLite"},
	{"a backslash is written as it is", sqltxDialect, "c == '-', c == '_'", "c == '-', c == '\\\\', c == '_'", "internal/ledger/sqltx TestAppendText/MariaDB"},
	{"a lost answer to a text means no commit", sqltxTx, "return fmt.Errorf(\"%w: %w\", ErrUnknownOutcome, err)", "return err", "internal/ledger/sqltx TestCommitIf_AnswerLost/MariaDB"},
	{"a text to a node of a Galera cluster", sqltxMySQL, "if s.galera() ||", "if", "internal/ledger/sqltx TestTexts_OnlyWhereTheyAreSafe"},
	{"a text to an unknown server", sqltxMySQL, "return slices.ContainsFunc(mysqlBuilds", "return true || slices.ContainsFunc(mysqlBuilds", "internal/ledger/sqltx TestTexts_OnlyWhereTheyAreSafe"},
	{"a text to every server", sqltxMySQL, "session.texts = c.texts && server.keepsTransactions()", "session.texts = c.texts", "internal/ledger/sqltx TestConnect"},
	{"a stale read of another node", sqltxMySQL, "if err == nil && server.galera() {", "if false {", "internal/ledger/sqltx TestConnect"},
	{"missing answers count as success", sqltxTx, "if len(affected) != len(statements) {", "if false {", "internal/ledger/sqltx TestTexts_NoWholeAnswer"},
	{"a refused statement of a text is an unknown outcome", sqltxTx, "(provesNoCommit(err) || t.stillOpen(err))", "provesNoCommit(err)", "internal/ledger/sqltx TestTexts_RefusedInTheMiddle/MariaDB"},
	{"every error of a text means no commit", sqltxTx, "(provesNoCommit(err) || t.stillOpen(err))", "(provesNoCommit(err) || driverError(err) != nil)", "internal/ledger/sqltx TestTexts_NoWholeAnswer"},
	{"a connection is used again after a failed ROLLBACK", sqltxTx, "t.discard()\n\t\treturn err\n\t}\n\treturn t.conn.Close()", "_ = t.conn.Close()\n\t\treturn err\n\t}\n\treturn t.conn.Close()", "internal/ledger/sqltx TestRollback_Failed/MariaDB"},
	{"a commit that fails leaves its transaction open", sqltxTx, "defer func() { _ = t.Rollback() }()", "_ = t", "internal/ledger/sqltx TestAtCommit"},
	{"a ROLLBACK has no bound of its own", sqltxTx, "context.WithTimeout(context.WithoutCancel(t.ctx), rollbackTimeout)\n\tdefer cancel()\n\tif _, err :=", "context.WithCancel(context.WithoutCancel(t.ctx))\n\tdefer cancel()\n\tif _, err :=", "internal/ledger/sqltx TestRollback_Failed/MariaDB"},
	{"every error of a COMMIT means no commit", sqltxTx, "if err == nil || provesNoCommit(err) {", "if true {", "internal/ledger/sqltx TestCommit_AnswerLost/MariaDB"},
	{"a COMMIT answered by ROLLBACK is a commit", sqltxPostgres, "answer.String() == \"ROLLBACK\"", "answer.String() == \"\"", "internal/ledger/sqltx TestCommit_AnsweredByRollback"},
	{"a COMMIT with a warning is a commit", sqltxPostgres, "return tag, s.warning(statement.SQL == \"COMMIT\")", "return tag, nil", "internal/ledger/sqltx TestCommit_NoTransaction"},
	{"a warning of a trigger is one of the COMMIT", sqltxTx, "if i == len(statements)-1 {", "if i == 0 {", "internal/ledger/sqltx TestCommitIf_TriggerWarns"},
	{"a pipeline with a warning is a commit", sqltxTx, "return cmp.Or(answers.Close(), session.warning(statements[len(statements)-1].SQL == \"COMMIT\"))", "return cmp.Or(answers.Close())", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a statement that only the primary has is committed", sqltxPostgres, "return result, s.warning(false)", "return result, nil", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a statement that the client gives up is cancelled", sqltxPostgres, "if ctx.Value(connecting{}) == nil {", "if false {", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a statement that was sent is sent again", sqltxPostgres, "return nil, errLost", "return nil, err", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a row is confirmed without the standby", sqltxDB, "if statement == \"\" || db.lacks.Standbys {", "if true {", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a connection closed during the answer was not used", sqltxErrors, "errors.Is(err, sql.ErrConnDone)\n}", "errors.Is(err, sql.ErrConnDone) || pgconn.SafeToRetry(err)\n}", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a COMMIT that was not sent is an unknown outcome", sqltxErrors, "return isUnsent(err) || isKnownRollback(err)", "return isKnownRollback(err)", "internal/ledger/sqltx TestCommit_NotSent/MariaDB"},
	{"a COMMIT after the end of its context", sqltxTx, "case t.ctx.Err() != nil:", "case false:", "internal/ledger/sqltx TestCommit_NotSent/MariaDB"},
	{"a read-only database is an unknown outcome", sqltxErrors, "IsStatementError(err) || IsReadOnly(err)", "IsStatementError(err)", "internal/ledger/sqltx TestErrors_ByNumber"},
	{"the server's autocommit", storeMySQL, "\"autocommit\":         \"1\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's completion_type", storeMySQL, "\"completion_type\":    \"'NO_CHAIN'\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's sql_select_limit", storeMySQL, "\"sql_select_limit\":   \"18446744073709551615\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's sql_mode", storeMySQL, "setDefault(config, \"sql_mode\", mysqlMode)", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"BEGIN in every mode", sqltxTx, "begin: \"START TRANSACTION\", query: queryMySQL", "begin: \"BEGIN\", query: queryMySQL", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"a MySQL that is read-only is the primary", sqltxMySQLPrimary, "if err == nil && server.readOnly() {", "if err == nil && server == nil {", "internal/store TestSeveralHosts/MariaDB"},
	{"administrators use a replica in Aurora", sqltxMySQLPrimary, "\"read_only\", \"innodb_read_only\"", "\"read_only\"", "internal/ledger/sqltx TestMySQLPrimary/a_replica_in_Aurora"},
	{"idle sessions stay with the earlier primary", sqltxMySQLPrimary, "if s.primary.latest.Load() != s.host {", "if false {", "internal/store TestSeveralHosts/MariaDB"},
	{"a session stays on a MySQL that refuses its writes", storeMySQL, "one.RejectReadOnly || len(addrs) > 1", "one.RejectReadOnly", "internal/store TestMySQLHosts"},
	{"a silent MySQL keeps the next one from being used", sqltxMySQLPrimary, "context.WithTimeout(ctx, p.limit)", "context.WithCancel(ctx)", "internal/store TestSeveralHosts_Silent/MariaDB"},
	{"a silent PostgreSQL keeps the next one from being used", storePostgres, "config.ConnectTimeout = hostTimeout(len(hosts))", "config.ConnectTimeout = connectTimeout", "internal/store TestSeveralHosts_Silent/PostgreSQL"},
	{"the first PostgreSQL is the primary", storePostgres, "len(hosts) > 1 && config.ValidateConnect == nil {", "false {", "internal/store TestSeveralHosts/PostgreSQL"},
	{"certificates are those of this machine", storeMySQL, "if one.TLS != nil {", "if false {", "internal/store TestMySQLHosts"},
	{"the server's escapes in strings", storePostgres, "sessions.RuntimeParams[\"standard_conforming_strings\"] = \"on\"", "", "internal/store TestSession_StatesWhatItReliesOn/PostgreSQL"},
	{"prepared statements through a pooler", storePostgres, "if pooled && config", "if pooled && false && config", "internal/store TestPgBouncer"},
	{"PostgreSQL may be silent for ever", storePostgres, "sessions.DialFunc = boundAnswers(", "_ = boundAnswers(", "internal/ledger TestSilentDatabase/PostgreSQL"},
	{"the bound of an answer replaces the deadline of the statement", "internal/store/readtimeout.go", "if !c.deadline.IsZero() && c.deadline.Before(until) {", "if false {", "internal/store TestBoundAnswers"},
	{"a transaction bounds only its BEGIN and COMMIT", transacting, "return do(ctx, tx)", "return do(context.WithoutCancel(ctx), tx)", "internal/ledger TestSilentTransaction/PostgreSQL"},
	{"a migration on a silent server", "internal/store/longstatement.go", "end(errSilent)", "_ = errSilent", "internal/store TestMigrate_SilentServer/MariaDB/during"},
	{"a killed migration stays dirty", migrateKilled, "case err != nil || !dirty:", "case err != nil || !dirty || latest > 0:", "internal/store TestMigrate_MendsOlderPrograms/MariaDB"},
	{"a statement that is done is run again", migrateKilled, "if st.converts || st.remains(found) > 0 {", "if true {", "internal/store TestMigrate_Killed/MariaDB/down"},
	{"a sequence that has lost its row stays", migrateKilled, "if !found[sequence] {", "if true {", "internal/store TestDropEmptySequence"},
	{"the rows of a killed migration are not converted", migrateKilled, "st.converts || ", "", "internal/store TestMigrate_CountedClaims/MariaDB"},
	{"a mended migration is followed by another one down", "internal/store/migrate.go", "(!mended || !down)", "(!mended || !down || mended)", "cmd/api TestMigrate_Killed/MariaDB/migrate_down"},
	{"a schema that somebody has changed is mended", migrateHistory, "number < len(h) && len(h.contradictions(number, found)) == 0", "number < len(h)", "internal/store TestMigrate_CannotMend/MariaDB"},
	{"a foreign column does not matter", migrateHistory, "known[o.table()] && (o.column() || h.makes(o))", "known[o.table()] && h.makes(o)", "internal/store TestMigrate_CannotMend/SQLite"},
	{"a missing column does not matter", migrateHistory, "if after[o] && !found[o] {", "if false {", "internal/store TestMigrate_CannotMend/SQLite"},
	{"half a statement does not matter", migrateHistory, "left > 0 && left < len(st.makes)+len(st.remove)", "false && left > 0", "internal/store TestMigrate_HalfAStatement/MariaDB"},
	{"an unknown statement of a migration is read", migrateHistory, "if len(st.makes)+len(st.remove) == 0 && !st.converts {", "if false {", "internal/store TestHistory_UnknownStatement"},
	{"migrations commit apart from their version", storePostgres, "\"BEGIN ISOLATION LEVEL READ COMMITTED\"", "\"SELECT 1\"", "internal/store TestWholeDriver_FailureChangesNothing/PostgreSQL"},
	{"migrations on PostgreSQL do not wait for each other", storePostgres, "SELECT pg_advisory_xact_lock(", "SELECT (", "internal/store TestMigrate_GoroutinesAtOnce/PostgreSQL"},
	{"a failed run is committed", "internal/store/migratewhole.go", "d.failed = true\n\t\treturn fmt.Errorf(\"running", "return fmt.Errorf(\"running", "internal/store TestWholeDriver_FailureChangesNothing/SQLite"},
	{"a migration waits for another one once", migrateSteps, "if !errors.Is(err, database.ErrLocked) ||", "if true ||", "internal/store TestLockPatiently"},
	{"a migration down loses data", migrateSteps, "if dirty && version < d.version {", "if false {", "internal/store TestMigrateDown_RefusesLosses/SQLite"},
	{"a killed migration down loses data", migrateKilled, "if err := d.holdUnused(ctx, number); err != nil {", "if err := error(nil); err != nil {", "internal/store TestMigrateDown_RefusesLosses/SQLite"},
	{"a migration down loses what is written after the look", migrateSteps, "if number := d.reverts; number > 0 {", "if number := d.reverts; number > 9 {", "internal/store TestMigrateDown_WhileServing/before_the_version_is_dirty/PostgreSQL"},
	{"a migration down that is refused stays dirty", migrateSteps, "return errors.Join(err, d.SetVersion(number, false))", "return err", "internal/store TestMigrateDown_WhileServing/before_the_version_is_dirty/MariaDB"},
	{"a migration down on MariaDB loses what is written meanwhile", storeMySQL, "\"LOCK TABLES \"+strings.Join(tables, \" WRITE, \")+\" WRITE\"", "\"DO 1 -- \"+strings.Join(tables, \" \")", "internal/store TestMigrateDown_WhileServing/before_the_first_statement/MariaDB"},
	{"a migration down on PostgreSQL loses what is written meanwhile", storePostgres, "\"LOCK TABLE %s IN ACCESS EXCLUSIVE MODE\"", "\"SELECT '%s'\"", "internal/store TestMigrateDown_WhileServing/before_the_first_statement/PostgreSQL"},
	{"a migration down forgets returned units", migrateLosses, "version > 0 OR restocked OR", "version > 0 OR", "internal/store TestMigrateDown_RefusesLosses/SQLite"},
	{"an instance is ready on an older schema", "internal/assembly/instance.go", "err := i.Stores.SQL.CheckSchema(ctx)", "err := error(nil)", "cmd/api TestMigrate_BesideInstance/SQLite"},
	{"an instance is not ready on a newer schema", "internal/assembly/instance.go", "if errors.Is(err, store.ErrSchemaNew) {", "if false {", "cmd/api TestMigrate_BesideInstance/SQLite"},
	{"a newer schema that is being migrated is dirty", "internal/store/migrate.go", "case version > latest:", "case version > latest && !dirty:", "internal/store TestMigrate_AnotherVersion/SQLite"},
	{"migrate version creates a file", "cmd/api/migrate.go", "if err := assembly.CheckFile(c.DB); err != nil {", "if err := error(nil); err != nil {", "cmd/api TestMigrate/SQLite"},
	{"serve creates a file", "internal/assembly/stores.go", "if err := CheckFile(p.DB); err != nil {", "if err := error(nil); err != nil {", "cmd/api TestMigrate/SQLite"},
	{"reconcile creates a file", "cmd/api/reconcile.go", "c.Migrate = false //", "//", "cmd/api TestMigrate/SQLite"},
	{"drain creates a file", "cmd/api/drain.go", "if err := assembly.CheckFile(c.DB); err != nil {", "if err := error(nil); err != nil {", "cmd/api TestMigrate/SQLite"},
	{"a server that cannot be connected to answers", "internal/store/longstatement.go", "return err == nil || errors.As(err, &mysql) || errors.As(err, &postgres)", "_, _, _ = err, mysql, postgres\n\treturn ctx.Err() == nil", "internal/store TestWhileAnswering_NoConnection/PostgreSQL"},
	{"reconcile on a silent server", "cmd/api/reconcile.go", "WhileAnswering(ctx, silence,", "WhileAnswering(ctx, time.Hour+silence,", "cmd/api TestReconcileOnSilentDatabase"},
	{"a database that does not answer keeps its pool", "internal/store/sql.go", "\t\ts.pool.Close()\n\t\treturn nil, s.failed(\"connecting to\", err)", "\t\treturn nil, s.failed(\"connecting to\", err)", "internal/store TestFailedOpen"},
	{"a migration that cannot connect keeps its pool", storeMySQL, "return nil, errors.Join(err, pool.Close())", "return nil, err", "internal/store TestFailedOpen"},
	{"a migration that is refused keeps its connection", storeMySQL, "return nil, errors.Join(err, conn.Close(), pool.Close())", "return nil, err", "internal/store TestFailedOpen"},
	{"a migration without a schema keeps its pool", storePostgres, "\t\treturn nil, errors.Join(err, pool.Close())\n\t}\n\t// Use the lock", "\t\treturn nil, err\n\t}\n\t// Use the lock", "internal/store TestFailedOpen"},
	{"a Redis that refuses the first command keeps its connection", "internal/store/redis.go", "\t\t\tclient.Close()\n\t\t\treturn nil", "\t\t\treturn nil", "internal/store TestOpenRedis_Refused"},
	{"a master that leaves a cluster is no change", "internal/store/watchredis.go", "differs := !maps.Equal(w.known, current)", "_, differs := maps.Clone(w.known), false\n\tfor address, id := range current {\n\t\tdiffers = differs || w.known[address] != id\n\t}", "internal/store TestWatchRedis_MasterLeaves"},
	{"no advice about a pooler", storePostgres, "poolerProblem(err))", "err)", "internal/store TestPgBouncer"},
	{"arrays in a mode without arrays", storePostgres, "mode == pgx.QueryExecModeExec ||", "", "internal/store TestOpenSQL_NoArrays"},
	{"waiting for a locked row", sqltxDB, "return \" FOR UPDATE SKIP LOCKED\"", "return \" FOR UPDATE\"", "internal/ledger TestLockedRows/MariaDB"},
	{"a slow COMMIT is not logged", sqltxDB, "tx.trace(tx.on.ctx, start, append(tx.last, Statement{SQL: \"COMMIT\"}), err)", "_ = start", "internal/ledger/sqltx TestSlowLog_EveryPath/MariaDB"},
	{"slow statements are not logged", sqltxDB, "r.trace(ctx, start, statements, err)", "_ = start", "internal/ledger/sqltx TestSlowLog_EveryPath/PostgreSQL"},
	{"a transaction begins apart from its first query", sqltxTx, "case t.texts:", "case false:", "internal/protocol TestRoundTrips/PostgreSQL/lua"},
	{"a query that was cut short has no rows", sqltxTx, "len(columns) == 0 {", "len(columns) < 0 {", "internal/ledger/sqltx TestFirstQuery_CutShort"},
	{"a query begins a transaction that is over", sqltxTx, "case t.over:\n\t\treturn nil, sql.ErrTxDone", "case t.over && t.begun:\n\t\treturn nil, sql.ErrTxDone", "internal/ledger/sqltx TestFirstQuery/PostgreSQL"},
	{"the last statements run apart from the COMMIT", sqltxTx, "if !t.texts && len(statements) > 0 {", "if len(statements) > 0 {", "internal/protocol TestRoundTrips/MariaDB/lua"},
	{"the error of a pipelined query is lost", sqltxPostgres, "return r.answers.Close()", "_ = r.answers.Close()\n\treturn nil", "internal/ledger/sqltx TestFirstQuery/PostgreSQL"},
	{"the error of BEGIN is hidden from a row", sqltxDB, "rows, err := r.with(ctx).Raw(query, args...).Rows()\n", "if query != \"\" {\n\t\treturn r.with(ctx).Raw(query, args...).Row().Scan(dest...)\n\t}\n\trows, err := r.with(ctx).Raw(query, args...).Rows()\n", "internal/ledger/sqltx TestQueryRow_NotBegun/SQLite"},
	{"rows that are cut short are no error", sqltxDB, "return rows.Err()", "return nil", "internal/ledger/sqltx TestQueryEach/SQLite"},
	{"values in the log", sqltxSlowLog, "sql string, _ ...any) (string, []any) { return sql, nil }", "sql string, values ...any) (string, []any) { return sql, values }", "internal/ledger/sqltx TestSlowLog_EveryPath/MariaDB"},
	{"a new SQLite file that is busy is refused", "internal/store/sql.go", "!sqltx.IsRetryable(err) ||", "true ||", "internal/store TestOpenSQL_SQLiteFileIsBusy"},
	{"a command that was written in part is sent again", "internal/store/redis.go", "n, err := c.TCPConn.Write(b)\n\treturn n, hideFromRetry(err)", "n, err := c.TCPConn.Write(b)\n\treturn n, err", "internal/store TestLostConnection_LooksFinal"},
}
