//go:build mutants

package mutants

const (
	transaction = "internal/store/tx.go"
	mysql       = "internal/store/mysql.go"
)

// databases are mutants of package store.
var databases = []mutant{
	{"some of a planned cut is enough", transaction, "affected[0] != rows", "affected[0] == 0", "internal/order TestPlannedGroup/SQLite"},
	{"some of a planned cut is enough, in one round trip", mysql, "ROW_COUNT() = %d", "ROW_COUNT() <= %d", "internal/order TestPlannedGroup/MariaDB"},
	{"a lost answer to a whole transaction means no", transaction, "t.end(err)\n\treturn false, fmt.Errorf(\"%w: %w\", ErrUnknownOutcome, err)", "t.end(err)\n\treturn false, err", "internal/order TestCommitInLimbo/MariaDB/lua"},
}
