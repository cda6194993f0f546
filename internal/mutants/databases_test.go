//go:build mutants

package mutants

const (
	transaction = "internal/store/tx.go"
	mysql       = "internal/store/mysql.go"
	errorsfile  = "internal/store/errors.go"
	mysqlServer = "internal/store/mysqlsession.go"
	standby     = "internal/store/postgressession.go"
	postgres    = "internal/store/postgres.go"
	locked      = "internal/store/locked.go"
)

// databases are mutants of package store.
var databases = []mutant{
	{"some of a planned cut is enough", transaction, "affected[0] != rows", "affected[0] == 0", "internal/order TestPlannedGroup/SQLite"},
	{"some of a planned cut is enough, in one round trip", mysql, "ROW_COUNT() = %d", "ROW_COUNT() <= %d", "internal/order TestPlannedGroup/MariaDB"},
	{"a lost answer to a whole transaction means no", transaction, "t.end(err)\n\treturn false, fmt.Errorf(\"%w: %w\", ErrUnknownOutcome, err)", "t.end(err)\n\treturn false, err", "internal/order TestCommitInLimbo/MariaDB/lua"},
	{"a text to a node of a Galera cluster", mysqlServer, "if s.galera() ||", "if", "internal/store TestTexts_OnlyWhereTheyAreSafe"},
	{"a text to an unknown server", mysqlServer, "return slices.ContainsFunc(mysqlBuilds", "return true || slices.ContainsFunc(mysqlBuilds", "internal/store TestTexts_OnlyWhereTheyAreSafe"},
	{"a text whatever the server is", mysqlServer, "session.texts = c.texts && server.keepsTransactions()", "session.texts = c.texts", "internal/store TestGalera"},
	{"a stale read of another node", mysqlServer, "if err == nil && server.galera() {", "if false {", "internal/store TestGalera"},
	{"answers that are missing are success", transaction, "if len(affected) != len(statements) {", "if false {", "internal/store TestTexts_NoWholeAnswer"},
	{"a refused statement of a text leaves the outcome open", transaction, "case provesNoCommit(err), t.stillOpen(err):", "case provesNoCommit(err):", "internal/store TestTexts_RefusedInTheMiddle"},
	{"every refused text is not committed", transaction, "case provesNoCommit(err), t.stillOpen(err):", "case provesNoCommit(err), driverError(err) != nil:", "internal/store TestTexts_NoWholeAnswer"},
	{"a connection is used again after a failed ROLLBACK", transaction, "t.discard()\n\t\treturn err\n\t}\n\treturn t.conn.Close()", "_ = t.conn.Close()\n\t\treturn err\n\t}\n\treturn t.conn.Close()", "internal/store TestRollback_Failed/MariaDB"},
	{"an error of a COMMIT means no", transaction, "if err == nil || provesNoCommit(err) {", "if true {", "internal/store TestCommit_AnswerLost/MariaDB"},
	{"a COMMIT answered by ROLLBACK is a commit", standby, "tag.String() == \"ROLLBACK\"", "tag.String() == \"\"", "internal/store TestCommit_AnsweredByRollback"},
	{"a COMMIT with a warning is a commit", standby, "return tag, s.doubt(commit)", "return tag, nil", "internal/store TestCommit_NoTransaction"},
	{"a statement that only the primary has is done", standby, "return result, s.doubt(false)", "return result, nil", "internal/store TestCommit_StandbyAway"},
	{"a statement given up is cancelled", standby, "if ctx.Value(connecting{}) == nil {", "if false {", "internal/store TestCommit_StandbyAway"},
	{"a statement that was sent is sent again", standby, "return nil, errLost", "return nil, err", "internal/store TestCommit_StandbyAway"},
	{"a row is confirmed without the standby", standby, "if db.Name() != string(Postgres) {", "if true {", "internal/store TestCommit_StandbyAway"},
	{"a connection closed in mid-answer was not used", errorsfile, "errors.Is(err, sql.ErrConnDone)\n}", "errors.Is(err, sql.ErrConnDone) || pgconn.SafeToRetry(err)\n}", "internal/store TestCommit_StandbyAway"},
	{"a COMMIT that was not sent is in doubt", errorsfile, "return isUnsent(err) || isKnownRollback(err)", "return isKnownRollback(err)", "internal/store TestCommit_NotSent/MariaDB"},
	{"a COMMIT after the request's end is in doubt", transaction, "if err := tx.Statement.Context.Err(); err != nil {", "if err := error(nil); err != nil {", "internal/store TestCommit_NotSent/MariaDB"},
	{"a read-only database leaves the outcome open", errorsfile, "IsStatementError(err) || IsReadOnly(err)", "IsStatementError(err)", "internal/store TestErrors_ByNumber"},
	{"the server's autocommit", mysql, "\"autocommit\":         \"1\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's completion_type", mysql, "\"completion_type\":    \"'NO_CHAIN'\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's sql_select_limit", mysql, "\"sql_select_limit\":   \"18446744073709551615\",", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's sql_mode", mysql, "setDefault(config, \"sql_mode\", mysqlMode)", "", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"BEGIN in every mode", mysql, "begin: \"START TRANSACTION\"", "begin: \"BEGIN\"", "internal/store TestSession_StatesWhatItReliesOn/MariaDB"},
	{"the server's strings", postgres, "sessions.RuntimeParams[\"standard_conforming_strings\"] = \"on\"", "", "internal/store TestSession_StatesWhatItReliesOn/PostgreSQL"},
	{"prepared statements through a pooler", postgres, "if pooled && config", "if pooled && false && config", "internal/store TestPgBouncer"},
	{"no advice about a pooler", postgres, "poolerProblem(err))", "err)", "internal/store TestPgBouncer"},
	{"arrays in a mode without arrays", postgres, "mode == pgx.QueryExecModeExec ||", "", "internal/store TestOpenSQL_NoArrays"},
	{"waiting for a locked row", locked, " SKIP LOCKED", "", "internal/store TestLockedRows/MariaDB"},
}
