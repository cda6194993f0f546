//go:build mutants

package mutants

const (
	sqltxDB       = "internal/ledger/sqltx/db.go"
	sqltxSlowLog  = "internal/ledger/sqltx/slowlog.go"
	sqltxTx       = "internal/ledger/sqltx/tx.go"
	sqltxErrors   = "internal/ledger/sqltx/errors.go"
	sqltxMySQL    = "internal/ledger/sqltx/mysql.go"
	sqltxPostgres = "internal/ledger/sqltx/postgres.go"
	sqltxDialect  = "internal/ledger/sqltx/dialect.go"
	storeMySQL    = "internal/store/mysql.go"
	storePostgres = "internal/store/postgres.go"
)

// databases are mutants of the packages sqltx and store.
var databases = []mutant{
	{"CommitIf commits after fewer rows", sqltxDB, "affected[0] != rows", "affected[0] == 0", "internal/ledger/sqltx TestCommitIf/SQLite"},
	{"CommitIf commits after fewer rows, in one round trip", sqltxTx, "ROW_COUNT() = %d", "ROW_COUNT() <= %d", "internal/ledger/sqltx TestCommitIf/MariaDB"},
	{"CommitIf commits after fewer rows, in one pipeline", sqltxTx, "count(*) = $%d", "count(*) <= $%d", "internal/ledger/sqltx TestCommitIf/PostgreSQL"},
	{"a cancelled statement of a pipeline is an unknown outcome", sqltxTx, "require: requirePostgres, open: openPostgres", "require: requirePostgres, open: func(context.Context, *sql.Conn) bool { return false }", "internal/ledger/sqltx TestTexts_RefusedInTheMiddle/PostgreSQL"},
	{"a quote is written as it is", sqltxDialect, "c == '-', c == '_'", "c == '-', c == '\\'', c == '_'", "internal/ledger/sqltx TestAppendText/SQLite"},
	{"a backslash is written as it is", sqltxDialect, "c == '-', c == '_'", "c == '-', c == '\\\\', c == '_'", "internal/ledger/sqltx TestAppendText/MariaDB"},
	{"a lost answer to CommitIf means no commit", sqltxTx, "t.end(err)\n\treturn false, fmt.Errorf(\"%w: %w\", ErrUnknownOutcome, err)", "t.end(err)\n\treturn false, err", "internal/ledger/sqltx TestCommitIf_AnswerLost/MariaDB"},
	{"a text to a node of a Galera cluster", sqltxMySQL, "if s.galera() ||", "if", "internal/ledger/sqltx TestTexts_OnlyWhereTheyAreSafe"},
	{"a text to an unknown server", sqltxMySQL, "return slices.ContainsFunc(mysqlBuilds", "return true || slices.ContainsFunc(mysqlBuilds", "internal/ledger/sqltx TestTexts_OnlyWhereTheyAreSafe"},
	{"a text to every server", sqltxMySQL, "session.texts = c.texts && server.keepsTransactions()", "session.texts = c.texts", "internal/ledger/sqltx TestConnect"},
	{"a stale read of another node", sqltxMySQL, "if err == nil && server.galera() {", "if false {", "internal/ledger/sqltx TestConnect"},
	{"missing answers count as success", sqltxTx, "if len(affected) != len(statements) {", "if false {", "internal/ledger/sqltx TestTexts_NoWholeAnswer"},
	{"a refused statement of a text is an unknown outcome", sqltxTx, "case provesNoCommit(err), t.stillOpen(err):", "case provesNoCommit(err):", "internal/ledger/sqltx TestTexts_RefusedInTheMiddle/MariaDB"},
	{"every error of a text means no commit", sqltxTx, "case provesNoCommit(err), t.stillOpen(err):", "case provesNoCommit(err), driverError(err) != nil:", "internal/ledger/sqltx TestTexts_NoWholeAnswer"},
	{"a connection is used again after a failed ROLLBACK", sqltxTx, "t.discard()\n\t\treturn err\n\t}\n\treturn t.conn.Close()", "_ = t.conn.Close()\n\t\treturn err\n\t}\n\treturn t.conn.Close()", "internal/ledger/sqltx TestRollback_Failed/MariaDB"},
	{"every error of a COMMIT means no commit", sqltxDB, "if err == nil || provesNoCommit(err) {", "if true {", "internal/ledger/sqltx TestCommit_AnswerLost/MariaDB"},
	{"a COMMIT answered by ROLLBACK is a commit", sqltxPostgres, "answer.String() == \"ROLLBACK\"", "answer.String() == \"\"", "internal/ledger/sqltx TestCommit_AnsweredByRollback"},
	{"a COMMIT with a warning is a commit", sqltxPostgres, "return tag, s.warning(statement.SQL == \"COMMIT\")", "return tag, nil", "internal/ledger/sqltx TestCommit_NoTransaction"},
	{"a warning of a trigger is one of the COMMIT", sqltxTx, "if i == len(statements)-1 {", "if i == 0 {", "internal/ledger/sqltx TestCommitIf_TriggerWarns"},
	{"a pipeline with a warning is a commit", sqltxTx, "return session.warning(statements[len(statements)-1].SQL == \"COMMIT\")", "return nil", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a statement that only the primary has is committed", sqltxPostgres, "return result, s.warning(false)", "return result, nil", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a statement that the client gives up is cancelled", sqltxPostgres, "if ctx.Value(connecting{}) == nil {", "if false {", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a statement that was sent is sent again", sqltxPostgres, "return nil, errLost", "return nil, err", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a row is confirmed without the standby", sqltxDB, "if statement == \"\" {", "if true {", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a connection closed during the answer was not used", sqltxErrors, "errors.Is(err, sql.ErrConnDone)\n}", "errors.Is(err, sql.ErrConnDone) || pgconn.SafeToRetry(err)\n}", "internal/ledger/sqltx TestCommit_StandbyAway"},
	{"a COMMIT that was not sent is an unknown outcome", sqltxErrors, "return isUnsent(err) || isKnownRollback(err)", "return isKnownRollback(err)", "internal/ledger/sqltx TestCommit_NotSent/MariaDB"},
	{"a COMMIT after the end of its context", sqltxDB, "if err := ctx.Err(); err != nil {", "if err := error(nil); err != nil {", "internal/ledger/sqltx TestCommit_NotSent/MariaDB"},
	{"a read-only database is an unknown outcome", sqltxErrors, "IsStatementError(err) || IsReadOnly(err)", "IsStatementError(err)", "internal/ledger/sqltx TestErrors_ByNumber"},
	{"the server's autocommit", storeMySQL, "\"autocommit\":         \"1\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's completion_type", storeMySQL, "\"completion_type\":    \"'NO_CHAIN'\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's sql_select_limit", storeMySQL, "\"sql_select_limit\":   \"18446744073709551615\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's sql_mode", storeMySQL, "setDefault(config, \"sql_mode\", mysqlMode)", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"BEGIN in every mode", sqltxTx, "begin: \"START TRANSACTION\", require: requireMySQL", "begin: \"BEGIN\", require: requireMySQL", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's escapes in strings", storePostgres, "sessions.RuntimeParams[\"standard_conforming_strings\"] = \"on\"", "", "internal/store TestSession_StatesWhatItReliesOn/PostgreSQL"},
	{"prepared statements through a pooler", storePostgres, "if pooled && config", "if pooled && false && config", "internal/store TestPgBouncer"},
	{"PostgreSQL may be silent for ever", storePostgres, "sessions.DialFunc = boundAnswers(", "_ = boundAnswers(", "internal/ledger TestSilentDatabase/PostgreSQL"},
	{"the bound of an answer replaces the deadline of the statement", "internal/store/answers.go", "if !c.deadline.IsZero() && c.deadline.Before(until) {", "if false {", "internal/store TestBoundAnswers"},
	{"a transaction bounds only its BEGIN and COMMIT", "internal/ledger/ledger.go", "return do(ctx, tx) })", "return do(context.WithoutCancel(ctx), tx) })", "internal/ledger TestSilentTransaction/PostgreSQL"},
	{"a migration on a silent server", "internal/store/silence.go", "end(errSilent)", "_ = errSilent", "internal/store TestMigrate_SilentServer/MariaDB/during"},
	{"a server that cannot be connected to answers", "internal/store/silence.go", "return err == nil || errors.As(err, &mysql) || errors.As(err, &postgres)", "_, _, _ = err, mysql, postgres\n\treturn ctx.Err() == nil", "internal/store TestWhileAnswering_NoConnection/PostgreSQL"},
	{"reconcile on a silent server", "cmd/api/reconcile.go", "WhileAnswering(ctx, silence,", "WhileAnswering(ctx, time.Hour+silence,", "cmd/api TestReconcileOnSilentDatabase"},
	{"no advice about a pooler", storePostgres, "poolerProblem(err))", "err)", "internal/store TestPgBouncer"},
	{"arrays in a mode without arrays", storePostgres, "mode == pgx.QueryExecModeExec ||", "", "internal/store TestOpenSQL_NoArrays"},
	{"waiting for a locked row", sqltxDialect, " FOR UPDATE SKIP LOCKED", " FOR UPDATE", "internal/ledger TestLockedRows/MariaDB"},
	{"a slow text is not logged", sqltxDB, "db.trace(ctx, start, text, err)", "_ = start", "internal/ledger/sqltx TestSlowLog_EveryPath/MariaDB"},
	{"slow statements are not logged", sqltxDB, "s.trace(ctx, start, statements, err)", "_ = start", "internal/ledger/sqltx TestSlowLog_EveryPath/PostgreSQL"},
	{"a slow COMMIT is not logged", sqltxDB, "tx.trace(ctx, start, []Statement{{SQL: \"COMMIT\"}}, err)", "_ = start", "internal/ledger/sqltx TestSlowLog_EveryPath/PostgreSQL"},
	{"the error of BEGIN is hidden from a row", sqltxDB, "rows, err := s.query(ctx, sql, args...)\n\tif err != nil {\n\t\treturn err\n\t}\n\treturn scanFirst(rows, dest)", "return s.gorm.WithContext(ctx).Raw(sql, args...).Row().Scan(dest...)", "internal/ledger/sqltx TestQueryRow_NotBegun/SQLite"},
	{"rows that are cut short are no error", sqltxDB, "return rows.Err()", "return nil", "internal/ledger/sqltx TestQueryEach/SQLite"},
	{"values in the log", sqltxSlowLog, "sql string, _ ...any) (string, []any) { return sql, nil }", "sql string, values ...any) (string, []any) { return sql, values }", "internal/ledger/sqltx TestSlowLog_EveryPath/MariaDB"},
	{"a new SQLite file that is busy is refused", "internal/store/sql.go", "!sqltx.IsRetryable(err) ||", "true ||", "internal/store TestOpenSQL_SQLiteFileIsBusy"},
}
