// Package arch checks the import directions of the tree: cmd → httpapi → order → stock, and
// ledger → order. No import points back. It also checks that test code waits for events, and does
// not depend on durations.
package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

const module = "github.com/holdfast-stock/holdfast/"

// mayImport lists what each package may import of this module. A package that is
// missing may import nothing of it. Tests may import anything.
var mayImport = map[string][]string{
	"cmd/api": {"internal/httpapi", "internal/console", "internal/console/rush", "internal/doctor", "internal/order", "internal/loglimit", "internal/assembly", "internal/assembly/backends", "internal/reconcile/findings",
		"internal/stock", "internal/store", "internal/tracing/otlp", "internal/certificate", "internal/buyertoken", "internal/retry", "internal/commandline"},
	"cmd/withlock": {"internal/commandline", "internal/store", "internal/lock", "internal/assembly/backends", "internal/lock/recipe"},
	"internal/assembly": {"internal/order", "internal/admin", "internal/async", "internal/reconcile", "internal/ledger", "internal/ledger/cutter", "internal/ledger/sqltx", "internal/stock", "internal/stock/gate", "internal/store",
		"internal/assembly/backends", "internal/lock", "internal/lock/redis", "internal/latency", "internal/tracing"},
	"internal/doctor":                   {"internal/assembly", "internal/reconcile", "internal/store", "internal/certificate", "internal/buyertoken"},
	"internal/console/rush":             {"internal/console", "internal/retry", "internal/httpapi", "internal/assembly", "internal/assembly/backends", "internal/stock", "internal/lab/measure", "internal/lab/load", "client"},
	"internal/httpapi":                  {"internal/order", "internal/admin", "internal/stock", "internal/latency", "internal/ratelimit", "internal/tracing"},
	"internal/buyertoken":               {"internal/stock"},
	"internal/console":                  {"internal/ledger", "internal/stock", "internal/latency", "internal/palette"},
	"internal/order":                    {"internal/stock", "internal/retry", "internal/latency", "internal/tracing"},
	"internal/async":                    {"internal/order", "internal/ledger", "internal/stock", "internal/retry", "internal/tracing"},
	"internal/admin":                    {"internal/order", "internal/ledger", "internal/stock", "internal/retry"},
	"internal/reconcile":                {"internal/order", "internal/ledger", "internal/stock", "internal/retry", "internal/group", "internal/ratelimit", "internal/tracing"},
	"internal/reconcile/findings":       {"internal/reconcile", "internal/stock"},
	"internal/ledger":                   {"internal/order", "internal/ledger/cutter", "internal/ledger/sqltx", "internal/stock", "internal/retry", "internal/group", "internal/latency", "internal/tracing"},
	"internal/ledger/cutter":            {"internal/ledger/sqltx", "internal/stock"},
	"internal/ledger/cutter/cuttertest": {"internal/ledger/cutter", "internal/ledger/sqltx", "internal/stock", "internal/testenv"},
	"internal/ledger/sqltx":             {},
	"internal/stock/gate":               {"internal/stock", "internal/lock", "internal/lock/recipe", "internal/group"},
	"internal/stock/gatetest":           {"internal/stock", "internal/testenv"},
	"internal/tracing/otlp":             {"internal/tracing"},
	"internal/assembly/backends":        {"internal/lock", "internal/lock/...", "internal/store"},
	"internal/assembly/backendtest":     {"internal/assembly/backends", "internal/lock", "internal/store", "internal/store/storetest", "internal/testenv"},
	"internal/lock/...":                 {"internal/lock", "internal/lock/address", "internal/retry"},
	"internal/lock/locktest":            {"internal/testenv"},
	"internal/lock/mysql":               {"internal/lock/session"},
	"internal/lock/postgres":            {"internal/lock/session"},
	"internal/store":                    {"internal/ledger/sqltx", "internal/retry", "migrations"},
	"internal/store/storetest":          {"internal/faults", "internal/ledger/sqltx", "internal/stock", "internal/store", "internal/testenv"},
	"internal/lab/command":              {"internal/commandline", "internal/testenv"},
	"internal/lab/load":                 {"client", "internal/retry"},
	"internal/lab/machine":              {"internal/testenv"},
	"internal/testenv/chromium":         {"internal/testenv"},
	"internal/faults":                   {"internal/testenv"},
	"bench":                             {"internal/commandline", "bench/rounds", "internal/lab/...", "internal/latency", "internal/testenv", "client"},
	"bench/...":                         {},
	"bench/locks":                       {"bench/rounds", "internal/commandline", "internal/lab/...", "internal/testenv", "internal/assembly/backendtest", "internal/store", "internal/store/storetest"},
	"bench/rounds":                      {"internal/commandline", "internal/lab/..."},
	"bench/scale":                       {"internal/commandline", "internal/lab/...", "internal/palette"},
	"loadtest":                          {"loadtest/...", "internal/commandline", "internal/testenv", "internal/store", "internal/lab/...", "internal/assembly", "internal/assembly/backends", "internal/retry", "client"},
	"loadtest/...":                      {"loadtest/results", "internal/lab/...", "internal/testenv"},
	"loadtest/smoke":                    {"loadtest/liar", "client"},
	"loadtest/history":                  {"client"},
	"loadtest/liar":                     {"client"},
	"loadtest/vegeta":                   {"internal/commandline", "internal/lab/command"},
	"loadtest/report":                   {"internal/palette"},
	"loadtest/pitfall":                  {"internal/lock", "internal/lock/...", "internal/stock", "internal/assembly", "internal/store", "internal/ledger/sqltx", "internal/retry"},
}

// onlyIn lists imports of other modules that only some packages may have.
var onlyIn = map[string][]string{
	"github.com/gin-gonic/gin":             {"internal/httpapi", "bench/reference"},
	"github.com/go-redsync/redsync/v4":     {"internal/lock/redlock", "bench/locks"},
	"github.com/go-zookeeper/zk":           {"internal/lock/zookeeper", "bench/locks", "loadtest/pitfall"},
	"go.etcd.io/etcd/client/v3":            {"internal/lock/etcd", "bench/locks"},
	"github.com/bsm/redislock":             {"bench/locks"},
	"github.com/anishathalye/porcupine":    {"loadtest/history"},
	"github.com/redis/rueidis":             {"bench/locks"},
	"github.com/golang-migrate/migrate/v4": {"internal/store"},
	"github.com/alicebob/miniredis/v2":     {"internal/store"},
	"gorm.io/gorm":                         {"internal/store", "internal/ledger/sqltx"},
	"gorm.io/driver/mysql":                 {"internal/store"},
	"gorm.io/driver/postgres":              {"internal/store"},
	"github.com/glebarez/sqlite":           {"internal/store"},
	"github.com/go-sql-driver/mysql":       {"internal/store", "internal/ledger/sqltx", "internal/testenv", "bench", "bench/..."},
	"github.com/jackc/pgx/v5":              {"internal/store", "internal/lock/postgres", "internal/ledger/sqltx", "internal/testenv", "bench", "bench/..."},
	"github.com/alecthomas/kong":           {"cmd/api", "cmd/withlock", "internal/commandline", "bench", "bench/...", "loadtest", "loadtest/..."},
	"github.com/prometheus/client_golang": {"cmd/api", "internal/assembly", "internal/doctor", "internal/httpapi", "internal/order", "internal/ledger", "internal/reconcile", "internal/async", "internal/latency", "internal/tracing",
		"internal/console", "internal/console/rush"},
	"github.com/go-json-experiment/json":     {"internal/httpapi", "internal/console/rush"},
	"github.com/go-playground/validator/v10": {"internal/httpapi"},
	"go.opentelemetry.io/otel":               {"internal/tracing", "internal/tracing/..."},
	"github.com/go-jose/go-jose/v4":          {"internal/buyertoken"},
	"github.com/hashicorp/golang-lru/v2":     {"internal/ratelimit", "internal/ledger/cutter"},
	"golang.org/x/time":                      {"internal/ratelimit"},
}

// opens lists the calls that open a store. Only the packages in openers may make them.
var opens = map[string]bool{
	"redis.NewClient": true, "redis.NewClusterClient": true, "redis.NewFailoverClient": true,
	"redis.NewFailoverClusterClient": true, "redis.NewUniversalClient": true, "gorm.Open": true, "sql.Open": true, "sql.OpenDB": true,
}

var openers = []string{"internal/store", "internal/store/storetest", "internal/testenv", "bench", "bench/...", "loadtest", "loadtest/..."}

// named lists the packages that may contain the name of a strategy.
var named = []string{"internal/assembly", "bench", "bench/...", "loadtest", "loadtest/..."}

// dialects lists the constants of the kinds of database. Only sqltx may compare with them, because
// a difference between the kinds must be a method of sqltx.Dialect.
var dialects = map[string]bool{"sqltx.MySQL": true, "sqltx.Postgres": true, "sqltx.SQLite": true}

// within reports whether the package is one of these; "a/..." matches all packages
// below a.
func within(pkg string, these []string) bool {
	return slices.ContainsFunc(these, func(pattern string) bool {
		below, ok := strings.CutSuffix(pattern, "/...")
		return pkg == pattern || ok && strings.HasPrefix(pkg, below+"/")
	})
}

// check returns the violations in a source file that is not a test.
func check(pkg string, file *ast.File) (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, pkg+": "+fmt.Sprintf(format, args...))
	}
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		if ours, ok := strings.CutPrefix(imported, module); ok {
			allowed := mayImport[pkg]
			for pattern, imports := range mayImport {
				if strings.HasSuffix(pattern, "/...") && within(pkg, []string{pattern}) {
					allowed = append(slices.Clone(allowed), imports...)
				}
			}
			if !within(ours, allowed) || ours == "internal/lock/flawed" && pkg != "loadtest/pitfall" {
				fault("imports %s", ours)
			}
			continue
		}
		for library, places := range onlyIn {
			if (imported == library || strings.HasPrefix(imported, library+"/")) && !within(pkg, places) {
				fault("imports %s, which is for %s", imported, strings.Join(places, ", "))
			}
		}
	}
	if file.Name.Name == "util" || file.Name.Name == "utils" || file.Name.Name == "common" || file.Name.Name == "helpers" {
		fault("is called %s", file.Name.Name)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				fault("has an init function")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && opens[x.Name+"."+n.Sel.Name] && !within(pkg, openers) {
				fault("opens a store: %s.%s", x.Name, n.Sel.Name)
			}
		case *ast.BinaryExpr:
			if (n.Op == token.EQL || n.Op == token.NEQ) && (isDialect(n.X) || isDialect(n.Y)) {
				fault("compares dialects")
			}
		case *ast.CaseClause:
			if slices.ContainsFunc(n.List, isDialect) {
				fault("compares dialects")
			}
		case *ast.BasicLit:
			word, err := strconv.Unquote(n.Value)
			// "none" has other meanings too, and "lock" is also a flag.
			if n.Kind == token.STRING && err == nil && word != "none" && word != "lock" && slices.Contains(assembly.StrategyNames(), word) && !within(pkg, named) {
				fault("knows a strategy by name: %q", word)
			}
		}
		return true
	})
	return faults
}

// isDialect reports whether the expression is a kind of database.
func isDialect(e ast.Expr) bool {
	selected, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := selected.X.(*ast.Ident)
	return ok && dialects[x.Name+"."+selected.Sel.Name]
}

// TestTree checks that no file of the module breaks a rule.
func TestTree(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	var files int
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "tools"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		files++
		for _, fault := range check(path.Dir(filepath.ToSlash(relative)), file) {
			t.Error(fault)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Errorf("checked only %d files", files)
	}
}

// TestRules checks that each rule rejects a file that breaks it, and accepts files
// that do not.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pkg, code, fault string }{
		{"internal/stock", `import _ "` + module + `internal/order"`, "imports internal/order"},
		{"internal/order", `import _ "` + module + `internal/httpapi"`, "imports internal/httpapi"},
		{"internal/order", `import _ "` + module + `internal/assembly"`, "imports internal/assembly"},
		{"internal/lock", `import _ "` + module + `internal/assembly/backends"`, "imports internal/assembly/backends"},
		{"cmd/withlock", `import _ "` + module + `internal/assembly"`, "imports internal/assembly"},
		{"internal/httpapi", `import _ "` + module + `internal/store"`, "imports internal/store"},
		{"internal/stock/gate", `import _ "` + module + `internal/ledger/cutter"`, "imports internal/ledger/cutter"},
		{"internal/ledger/cutter", `import _ "` + module + `internal/stock/gate"`, "imports internal/stock/gate"},
		{"internal/order", `import _ "` + module + `internal/reconcile"`, "imports internal/reconcile"},
		{"internal/order", `import _ "` + module + `internal/ledger"`, "imports internal/ledger"},
		{"internal/ledger", `import _ "` + module + `internal/reconcile"`, "imports internal/reconcile"},
		{"internal/ledger", `import _ "` + module + `internal/stock/gate"`, "imports internal/stock/gate"},
		{"internal/order", `import _ "gorm.io/gorm"`, "imports gorm.io/gorm"},
		{"internal/ledger", `import _ "gorm.io/gorm"`, "imports gorm.io/gorm"},
		{"internal/stock/gate", `import _ "` + module + `internal/lock/redis"`, "imports internal/lock/redis"},
		{"internal/lock/redis", `import _ "` + module + `internal/stock"`, "imports internal/stock"},
		{"internal/assembly", `import _ "` + module + `internal/lock/flawed"`, "imports internal/lock/flawed"},
		{"cmd/api", `import _ "` + module + `internal/testenv"`, "imports internal/testenv"},
		{"internal/fresh", `import _ "` + module + `internal/stock"`, "imports internal/stock"},
		{"internal/order", `import _ "go.opentelemetry.io/otel/trace"`, "imports go.opentelemetry.io/otel/trace"},
		{"internal/order", `import _ "github.com/gin-gonic/gin"`, "imports github.com/gin-gonic/gin"},
		{"internal/stock/gate", `import _ "github.com/go-redsync/redsync/v4/redis"`, "imports github.com/go-redsync"},
		{"internal/stock/gate", `import _ "gorm.io/gorm"`, "imports gorm.io/gorm"},
		{"internal/order", `import "github.com/redis/go-redis/v9"; var _ = redis.NewClient`, "opens a store: redis.NewClient"},
		{"cmd/api", `import "database/sql"; var _, _ = sql.Open("", "")`, "opens a store: sql.Open"},
		{"internal/order", `var _ = "merged"`, `knows a strategy by name: "merged"`},
		{"internal/order", `func init() {}`, "init function"},
		{"internal/ledger", `import "` + module + `internal/ledger/sqltx"; func f(d sqltx.Dialect) bool { return d == sqltx.MySQL }`, "compares dialects"},
		{"internal/ledger", `import "` + module + `internal/ledger/sqltx"; func f(d sqltx.Dialect) bool { return sqltx.SQLite != d }`, "compares dialects"},
		{"internal/ledger", `import "` + module + `internal/ledger/sqltx"; func f(d sqltx.Dialect) { switch d { case sqltx.Postgres: } }`, "compares dialects"},

		{"internal/lock/redis", `import _ "` + module + `internal/lock"`, ""},
		{"internal/lock/redlock", `import _ "github.com/go-redsync/redsync/v4"`, ""},
		{"internal/assembly", `var _ = "merged"`, ""},
		{"internal/store", `import "database/sql"; var _, _ = sql.Open("", "")`, ""},
		{"internal/order", `var _ = "none"`, ""},
		{"internal/store", `import "` + module + `internal/ledger/sqltx"; var _ = map[sqltx.Dialect]string{sqltx.MySQL: ""}`, ""},
	} {
		t.Run(test.pkg+" "+test.code, func(t *testing.T) {
			file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; "+test.code, 0)
			if err != nil {
				t.Fatal(err)
			}
			faults := strings.Join(check(test.pkg, file), "\n")
			if test.fault == "" && faults != "" || !strings.Contains(faults, test.fault) {
				t.Errorf("found %q, want %q", faults, test.fault)
			}
		})
	}
}
