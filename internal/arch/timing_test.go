package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A test states an order of events, not a duration. It waits for events with testenv.Await,
// AwaitSuccess, Receive or Poll, which share one bound. So test code may not sleep, have its own
// timeouts, also of clients and connections, or fail because something took too long. In a bubble of
// testing/synctest, it may do all of that, because its clock does not depend on the machine. A
// benchmark checks what must be fast.
//
// A call that takes a context waits for testenv.Patience. A context that ends within less than a
// second is not a bound, but what a test is about: the call must notice its end.
//
// A bubble is a function literal that is an argument of synctest.Test, or of a function of the
// package that calls synctest.Test. A named function belongs to bubbles if it is mentioned only
// there. A sleep in a method that only other code calls in a bubble is marked on the same line: "//
// in a bubble".

// timed lists the functions that may measure time, sleep and have timeouts, with the reasons.
var timed = map[string]string{
	"internal/testenv/await.go Poll":         "the one bound, and the pauses between two checks",
	"internal/testenv/await.go AwaitSuccess": "a test that has failed: the event may depend on the failed step",
	"internal/testenv/await.go Dither":       "the work of a client or of a holder: no test depends on its length",
	"internal/faults/faults.go later":        "a part of the fault: a statement that arrives late",
	"internal/faults/redis.go fail":          "a part of the fault: the client's own timeout",
	"internal/testenv/zookeeper.go Monitor":  "a server that is starting may never answer, and is asked again",
	"deploy/settings_test.go run":            "a server that is starting may never answer, and is asked again",
	"loadtest/loadtest_test.go ServeHTTP":    "the time that a service takes for an order is what open loads measure",

	"internal/ledger/sqltx/postgres_test.go TestCommit_StandbyAway": "the standby never confirms, however long the test waits",
	"internal/lock/etcd/address_test.go TestCredentialsAndTLS":      "New must fail, although it has the time to succeed",
	"internal/lock/locktest/docs_test.go underLock":                 "the code of docs/locks.md",
	"internal/store/migrate_test.go TestMigrateDown_WhileServing":   "the write may wait for a migration that waits for it",

	"internal/lock/locktest/faults.go endsWithin":    "the end of a lease, and what a Locker does not show: who waits",
	"internal/lock/locktest/faults.go connectionCut": "a lease may have ended because the machine was busy",
	"internal/protocol/faults_test.go seedsFrom":     "a flag says for how long",
	"internal/protocol/faults_test.go run":           "a part of the fault: a client that gives up",
	"internal/faults/faults_test.go executeUnder":    "a part of the fault: a client that gives up",
	"internal/protocol/storm_test.go runStorm":       "a storm may last longer than the one bound",
	"internal/protocol/storm_test.go run":            "a part of the storm",
	"internal/protocol/storm_test.go send":           "a part of the storm",
	"internal/protocol/storm_test.go injectFaults":   "a part of the storm",

	// Timers of other processes, which a test cannot observe.
	"cmd/withlock/main_test.go TestMain":                            "a command that begins too early does so in this time",
	"deploy/gateway/shop_test.go expireCache":                       "nginx drops a cached count",
	"internal/store/longstatement_test.go TestMigrate_SilentServer": "a migration lasts longer than a server may be silent",
}

// support lists the packages, apart from tests, that hold test code.
var support = []string{"internal/testenv", "internal/testenv/...", "internal/faults", "internal/store/storetest", "internal/assembly/backendtest", "internal/lock/locktest", "internal/stock/gatetest", "internal/ledger/cutter/cuttertest"}

// inBubble is the mark on a line with a sleep that runs in a bubble, where the rules cannot detect
// that.
const inBubble = "in a bubble"

// timing finds dependencies on durations in the test code of one package.
type timing struct {
	set     *token.FileSet
	files   map[string]*ast.File // files by path
	seconds map[string]bool      // constants and variables that are numbers of seconds, by declaration and name
	bubbles map[ast.Node]bool    // literals and declarations of functions that run in bubbles
	runners map[string]bool      // functions that call synctest.Test and have a function as parameter
}

// call returns the package and the name of a call such as time.Sleep(d).
func call(n ast.Node) (pkg, name string) {
	if c, ok := n.(*ast.CallExpr); ok {
		n = c.Fun
	}
	if s, ok := n.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name, s.Sel.Name
		}
		return "", s.Sel.Name
	}
	if x, ok := n.(*ast.Ident); ok {
		return "", x.Name
	}
	return "", ""
}

// isCall reports whether n is a call of the function.
func isCall(n ast.Node, pkg, name string) bool {
	_, ok := n.(*ast.CallExpr)
	p, f := call(n)
	return ok && p == pkg && f == name
}

// visit calls f for each node of the files, with the nodes around it, outermost first.
func (t *timing) visit(f func(file string, around []ast.Node, n ast.Node)) {
	for name, file := range t.files {
		var around []ast.Node
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil {
				around = around[:len(around)-1]
				return true
			}
			f(name, around, n)
			around = append(around, n)
			return true
		})
	}
}

// findBubbles finds the functions that run only in bubbles.
func (t *timing) findBubbles() {
	t.bubbles, t.runners = make(map[ast.Node]bool), make(map[string]bool)
	t.visit(func(_ string, around []ast.Node, n ast.Node) {
		if !isCall(n, "synctest", "Test") || len(around) < 2 {
			return
		}
		if f, ok := around[1].(*ast.FuncDecl); ok && slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool { _, ok := p.Type.(*ast.FuncType); return ok }) {
			t.runners[f.Name.Name] = true
		}
	})
	t.visit(func(_ string, _ []ast.Node, n ast.Node) {
		c, ok := n.(*ast.CallExpr)
		if pkg, name := call(n); !ok || !(pkg == "synctest" && name == "Test" || t.runners[name]) {
			return
		}
		for _, argument := range c.Args {
			t.bubbles[argument] = true // a literal, or an argument that does not matter
		}
	})
	for found := -1; found != len(t.bubbles); { // also functions that are called only by functions of bubbles
		found = len(t.bubbles)
		outside, inside := make(map[string]bool), make(map[string]bool)
		t.visit(func(_ string, around []ast.Node, n ast.Node) {
			name, ok := n.(*ast.Ident)
			if !ok {
				return
			}
			switch {
			case len(around) > 0 && isDeclared(around[len(around)-1], name):
			case t.isInBubble(around):
				inside[name.Name] = true
			default:
				outside[name.Name] = true
			}
		})
		t.visit(func(_ string, _ []ast.Node, n ast.Node) {
			if f, ok := n.(*ast.FuncDecl); ok && inside[f.Name.Name] && !outside[f.Name.Name] {
				t.bubbles[n] = true
			}
		})
	}
}

// findSeconds finds the constants and variables that are numbers of seconds.
func (t *timing) findSeconds() {
	t.seconds = make(map[string]bool)
	for found := -1; found != len(t.seconds); { // also those that are multiples of others
		found = len(t.seconds)
		t.visit(func(_ string, around []ast.Node, n ast.Node) {
			in := ""
			if len(around) > 1 {
				in = declared(around[1])
			}
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, value := range n.Values {
					t.addSeconds(in, n.Names[i], value)
				}
			case *ast.AssignStmt:
				for i, value := range n.Rhs {
					t.addSeconds(in, n.Lhs[i], value)
				}
			}
		})
	}
}

// addSeconds adds a name of the declaration if its value is a number of seconds. The one bound is
// allowed everywhere.
func (t *timing) addSeconds(in string, name, value ast.Expr) {
	if x, ok := name.(*ast.Ident); ok && x.Name != "Patience" && t.isSeconds(in, value) {
		t.seconds[in+" "+x.Name] = true
	}
}

// declared returns the name of a function, or "" for another declaration of a file.
func declared(n ast.Node) string {
	if f, ok := n.(*ast.FuncDecl); ok {
		return f.Name.Name
	}
	return ""
}

// isDeclared reports whether n declares the function or method with that name.
func isDeclared(n ast.Node, name *ast.Ident) bool {
	f, ok := n.(*ast.FuncDecl)
	return ok && f.Name == name
}

func (t *timing) isInBubble(around []ast.Node) bool {
	return slices.ContainsFunc(around, func(n ast.Node) bool { return t.bubbles[n] })
}

// elapsed returns the expressions and variables of a declaration that measure elapsed time.
func elapsed(f ast.Node) func(e ast.Expr) bool {
	variables := make(map[string]bool)
	measures := func(e ast.Expr) bool {
		if x, ok := e.(*ast.Ident); ok {
			return variables[x.Name]
		}
		if isCall(e, "time", "Since") {
			return true
		}
		c, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		s, ok := c.Fun.(*ast.SelectorExpr)
		return ok && s.Sel.Name == "Sub" && isCall(s.X, "time", "Now")
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, value := range a.Rhs {
				if x, ok := a.Lhs[i].(*ast.Ident); ok && measures(value) {
					variables[x.Name] = true
				}
			}
		}
		return true
	})
	return measures
}

// faults returns the dependencies on durations. It adds the names of functions that timed lists to
// used.
func (t *timing) faults(used map[string]bool) (faults []string) {
	t.findBubbles()
	t.findSeconds()
	allowed := make(map[string]map[int]bool) // lines that are marked as in a bubble
	for name, file := range t.files {
		allowed[name] = make(map[int]bool)
		for _, group := range file.Comments {
			for _, c := range group.List {
				allowed[name][t.set.Position(c.Pos()).Line] = strings.Contains(c.Text, inBubble)
			}
		}
	}
	measures := make(map[ast.Node]func(ast.Expr) bool)
	t.visit(func(file string, around []ast.Node, n ast.Node) {
		if len(around) < 2 || t.isInBubble(around) {
			return
		}
		in := declared(around[1])
		if strings.HasPrefix(in, "Benchmark") || strings.HasPrefix(in, "Example") {
			return
		}
		if measures[around[1]] == nil {
			measures[around[1]] = elapsed(around[1])
		}
		fault := t.rule(around, n, measures[around[1]])
		where := t.set.Position(n.Pos())
		if fault == "" || allowed[file][where.Line] && len(t.bubbles) > 0 {
			return
		}
		if key := file + " " + in; timed[key] != "" {
			used[key] = true
			return
		}
		faults = append(faults, fmt.Sprintf("%s:%d: %s %s", file, where.Line, in, fault))
	})
	slices.Sort(faults)
	return faults
}

// rule returns which rule the node breaks.
func (t *timing) rule(around []ast.Node, n ast.Node, measures func(ast.Expr) bool) string {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		switch pkg, name := call(n); {
		case pkg == "time" && name == "Sleep", pkg == "retry" && (name == "Sleep" || name == "Wait"):
			return "sleeps"
		case pkg == "time" && name == "After":
			return "has a timeout of its own"
		}
		if isCall(n.X, "time", "Now") && (n.Sel.Name == "After" || n.Sel.Name == "Before" && isCondition(around)) {
			return "has a deadline of its own"
		}
	case *ast.CallExpr:
		if bound := boundOf(n); bound != nil && t.isSeconds(declared(around[1]), bound) {
			return "has a timeout of its own"
		}
	case *ast.KeyValueExpr:
		if field, ok := n.Key.(*ast.Ident); ok && (field.Name == "Timeout" || field.Name == "DialTimeout") && t.isSeconds(declared(around[1]), n.Value) {
			return "has a timeout of its own"
		}
	case *ast.BinaryExpr:
		switch {
		case (n.Op == token.GTR || n.Op == token.GEQ) && measures(n.X), (n.Op == token.LSS || n.Op == token.LEQ) && measures(n.Y):
			return "must be fast"
		case (n.Op == token.LSS || n.Op == token.LEQ) && measures(n.X) && isCondition(around):
			return "goes on for some time"
		}
	}
	return ""
}

// boundOf returns the argument that bounds a call or a wait, or nil if n does not bound one.
func boundOf(n *ast.CallExpr) ast.Expr {
	switch pkg, name := call(n); {
	case len(n.Args) == 0:
	case pkg == "context" && len(n.Args) > 1 && strings.HasPrefix(name, "With"):
		return n.Args[1]
	case pkg == "time" && (name == "AfterFunc" || name == "NewTimer"), name == "Poll", name == "SetDeadline", name == "SetReadDeadline", name == "SetWriteDeadline":
		return n.Args[0]
	}
	return nil
}

// isSeconds reports whether an expression of a declaration is a number of seconds, minutes or hours,
// or a time that is so much later than another.
func (t *timing) isSeconds(in string, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return (e.Op == token.MUL || e.Op == token.ADD) && (t.isSeconds(in, e.X) || t.isSeconds(in, e.Y))
	case *ast.CallExpr:
		_, name := call(e)
		return name == "Add" && len(e.Args) == 1 && t.isSeconds(in, e.Args[0])
	case *ast.Ident:
		return t.seconds[in+" "+e.Name] || t.seconds[" "+e.Name]
	}
	pkg, name := call(e)
	return pkg == "time" && (name == "Second" || name == "Minute" || name == "Hour")
}

// isCondition reports whether the innermost statement around a node is a loop. Then the node is a
// part of the loop's condition.
func isCondition(around []ast.Node) bool {
	for _, n := range slices.Backward(around) {
		if _, ok := n.(ast.Stmt); ok {
			_, loop := n.(*ast.ForStmt)
			return loop
		}
	}
	return false
}

// TestTiming checks that no test code of the module depends on durations.
func TestTiming(t *testing.T) {
	t.Parallel()
	root, packages := filepath.Join("..", ".."), make(map[string]*timing)
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "tools"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		pkg := path.Dir(relative)
		if !strings.HasSuffix(name, "_test.go") && !within(pkg, support) {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if packages[pkg] == nil {
			packages[pkg] = &timing{set: token.NewFileSet(), files: make(map[string]*ast.File)}
		}
		packages[pkg].files[relative], err = parser.ParseFile(packages[pkg].set, relative, text, parser.ParseComments)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		for _, fault := range packages[pkg].faults(used) {
			t.Error(fault)
		}
	}
	for key := range timed {
		if !used[key] {
			t.Errorf("timed has %q, which depends on no duration", key)
		}
	}
}

// TestTimingRules checks that each rule finds its violations, and accepts allowed code.
func TestTimingRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ code, fault string }{
		{`func TestA(t *testing.T) { time.Sleep(1) }`, "TestA sleeps"},
		{`func TestA(t *testing.T) { defer clean(time.Sleep) }`, "TestA sleeps"},
		{`func TestA(t *testing.T) { _ = retry.Sleep(ctx, 1) }`, "TestA sleeps"},
		{`func TestA(t *testing.T) { select { case <-c: case <-time.After(1): } }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { for time.Now().Before(end) { } }`, "TestA has a deadline of its own"},
		{`func TestA(t *testing.T) { for !holds() { if time.Now().After(end) { t.Fatal() } } }`, "TestA has a deadline of its own"},
		{`func TestA(t *testing.T) { for time.Since(start) < 5 { } }`, "TestA goes on for some time"},
		{`func TestA(t *testing.T) { if took := time.Since(start); took > 5 { t.Error() } }`, "TestA must be fast"},
		{`func TestA(t *testing.T) { if 5 <= time.Now().Sub(start) { t.Error() } }`, "TestA must be fast"},
		{`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { help() }) }; func help() { time.Sleep(1) }; func TestB(t *testing.T) { help() }`, "help sleeps"},
		{`func (fake) Load() { time.Sleep(1) }`, "Load sleeps"},
		{"func (fake) Load() {\n time.Sleep(1) // in a bubble\n}", "Load sleeps"}, // the package has no bubble
		{`func TestA(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), time.Second) }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, err) }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { defer time.AfterFunc(50*time.Second, kill).Stop() }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { end := time.NewTimer(time.Hour) }`, "TestA has a timeout of its own"},
		{`const step, limit = 5 * time.Second, 3 * step; func TestA(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), lease+limit) }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { ctx, cancel := context.WithDeadline(t.Context(), start.Add(time.Minute)) }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { _ = conn.SetDeadline(time.Now().Add(20 * time.Second)) }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { _ = conn.SetReadDeadline(start.Add(time.Second)) }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { limit := 15 * time.Second; err := testenv.Poll(limit, try) }`, "TestA has a timeout of its own"},
		{`var c = &http.Client{Timeout: 20 * time.Second}`, "has a timeout of its own"},
		{`func TestA(t *testing.T) { c := &http.Client{Timeout: 20 * time.Second} }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { conn, err := (&net.Dialer{Timeout: time.Minute}).Dial("tcp", address) }`, "TestA has a timeout of its own"},
		{`func TestA(t *testing.T) { c, err := clientv3.New(clientv3.Config{DialTimeout: 5 * time.Second}) }`, "TestA has a timeout of its own"},

		{`func TestA(t *testing.T) { if took := time.Since(start); took < 5 { t.Error() } }`, ""},
		{`func TestA(t *testing.T) { if time.Now().Before(end) { t.Error() } }`, ""},
		{`func TestA(t *testing.T) { t.Log(time.Since(start)) }`, ""},
		{`func TestA(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), 3*testenv.Patience) }`, ""},
		{`func TestA(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) }`, ""},
		{`func TestA(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), lease/2) }`, ""},
		{`const Patience = time.Minute; const most = 5 * Patience; func TestA(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), most) }`, ""},
		{`func TestA(t *testing.T) { ctx, cancel := context.WithDeadline(t.Context(), lost.Add(lease+testenv.Patience)) }`, ""},
		{`func TestA(t *testing.T) { _ = conn.SetDeadline(time.Time{}) }`, ""},
		{`func TestA(t *testing.T) { c := &http.Client{Timeout: testenv.Patience} }`, ""},
		{`func TestA(t *testing.T) { const lease = time.Hour }; func wait(lease time.Duration) { ctx, cancel := context.WithTimeout(ctx, lease) }`, ""},
		{`func TestA(t *testing.T) { v := history.Check(calls, history.Options{Timeout: 50 * time.Millisecond}) }`, ""},
		{`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), time.Minute) }) }`, ""},
		{`func Example() { ctx, cancel := context.WithTimeout(context.Background(), time.Minute) }`, ""},
		{`func BenchmarkA(b *testing.B) { if time.Since(start) > 5 { b.Error() } }`, ""},
		{`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1); if time.Since(start) > 1 { t.Error() } }) }`, ""},
		{`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { help() }) }; func help() { helpMore() }; func helpMore() { time.Sleep(1) }`, ""},
		{`func TestA(t *testing.T) { each(t, func() { time.Sleep(1) }) }; func each(t *testing.T, f func()) { synctest.Test(t, func(t *testing.T) { f() }) }`, ""},
		{"func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { use(fake{}) }) }\nfunc (fake) Load() {\n time.Sleep(1) // in a bubble\n}", ""},
	} {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, "x_test.go", "package x; "+test.code, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		found := strings.Join((&timing{set: set, files: map[string]*ast.File{"x_test.go": file}}).faults(nil), "\n")
		if test.fault == "" && found != "" || !strings.HasSuffix(found, test.fault) {
			t.Errorf("%s: found %q, want %q", test.code, found, test.fault)
		}
	}
}
