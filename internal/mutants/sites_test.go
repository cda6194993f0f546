//go:build mutants

package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// site is one place in the code that can be broken at random.
type site struct {
	file       string // path relative to the module's root
	line       int
	function   string
	kind       string // the kind of change
	text       string // the code that is changed, on one line
	start, end int    // positions of its bytes in the file
	before     string // text to insert before the code; %d stands for the mutant's number
	after      string
}

// key identifies a site by its contents, not by its line, so that edits elsewhere in the file do
// not change it.
func (s *site) key() string {
	return fmt.Sprintf("%s %s: %s: %s", s.file, s.function, s.kind, s.text)
}

func (s *site) String() string {
	return fmt.Sprintf("%s:%d %s: %s: %s", s.file, s.line, s.function, s.kind, s.text)
}

// opposites are functions with the same signature. Confusing them gives a wrong outcome.
var opposites = map[string]string{"Refused": "Unknown", "Unknown": "Refused"}

// unobserved matches statements without a tested effect. They change only logs, traces, counts or
// the wait of a retry, or their removal only blocks the test.
var unobserved = regexp.MustCompile(`\b(log|slog|span|tracer|metrics)\b|\b(Inc|Observe|Unlock|RUnlock|cancel|Helper|pause)\(`)

// finder collects the sites of one file.
type finder struct {
	set       *token.FileSet
	file      string
	source    []byte
	sentinels map[string]string // the next error variable of the same declaration, by error variable
	sites     []*site
	functions []scope // functions that enclose the node
	parents   []ast.Node
	branches  int // number of error branches that enclose the node
	// silent are the conditions that decide only about unobserved statements.
	silent []ast.Expr
}

type scope struct {
	name    string
	fails   bool // the last result of the function is an error
	results int
}

// onError matches conditions that check for an error or an unknown outcome.
var onError = regexp.MustCompile(`\b[eE]rr\b|[a-z]Err\b|\bErr[A-Z]|\berrors\.(Is|As)\(|\.(Err|Refused|Unknown)\(`)

// sitesOf returns every site in the error paths of the file: returned errors, branches that check
// for an error, and the statements in these branches. sentinels maps error variables of the package
// to others of the same declaration.
func sitesOf(set *token.FileSet, name string, source []byte, parsed *ast.File, sentinels map[string]string) []*site {
	f := &finder{set: set, file: name, source: source, sentinels: sentinels}
	for _, d := range parsed.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil && d.Name.Name != "String" {
			f.functions = []scope{{functionName(d), returnsError(d.Type), d.Type.Results.NumFields()}}
			ast.Inspect(d.Body, f.visit)
		}
	}
	return f.sites
}

func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	receiver := d.Recv.List[0].Type
	if p, ok := receiver.(*ast.StarExpr); ok {
		receiver = p.X
	}
	if g, ok := receiver.(*ast.IndexExpr); ok {
		receiver = g.X
	}
	return fmt.Sprint(receiver) + "." + d.Name.Name
}

func returnsError(t *ast.FuncType) bool {
	if t.Results == nil || len(t.Results.List) == 0 {
		return false
	}
	last, ok := t.Results.List[len(t.Results.List)-1].Type.(*ast.Ident)
	return ok && last.Name == "error"
}

// visit is called with nil after the children of a node.
func (f *finder) visit(n ast.Node) bool {
	if n == nil {
		last := f.parents[len(f.parents)-1]
		if _, ok := last.(*ast.FuncLit); ok {
			f.functions = f.functions[:len(f.functions)-1]
		}
		if f.isErrorBranch(last) {
			f.branches--
		}
		f.parents = f.parents[:len(f.parents)-1]
		return true
	}
	var parent ast.Node
	if len(f.parents) > 0 {
		parent = f.parents[len(f.parents)-1]
	}
	f.parents = append(f.parents, n)
	if f.isErrorBranch(n) {
		f.branches++
	}
	switch n := n.(type) {
	case *ast.FuncLit:
		f.functions = append(f.functions, scope{f.functions[0].name, returnsError(n.Type), n.Type.Results.NumFields()})
	case *ast.IfStmt:
		if n.Else == nil && f.isUnobserved(n.Body.List) {
			f.silent = append(f.silent, n.Cond)
		}
		f.condition(n.Cond)
		f.initCall(n.Init)
	case *ast.CaseClause:
		if s, ok := f.parents[len(f.parents)-3].(*ast.SwitchStmt); ok && s.Tag == nil {
			for _, c := range n.List {
				f.condition(c)
			}
		}
	case *ast.BinaryExpr:
		f.operands(n)
	case *ast.ReturnStmt:
		f.result(n)
	case *ast.BranchStmt:
		if n.Tok == token.CONTINUE {
			f.skip(n, "skip")
		}
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.GoStmt, *ast.DeferStmt, *ast.SendStmt:
		if inBlock(parent, n) {
			f.skip(n, "skip")
		}
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE && inBlock(parent, n) {
			f.skip(n, "skip")
		}
	case *ast.CallExpr:
		if name, ok := called(n); ok {
			f.add(n.Fun, "take for "+opposites[name], "mutantSwap(%d, ", ", "+strings.Replace(f.code(n.Fun), name, opposites[name], 1)+")")
		}
	case *ast.SelectorExpr:
		if other, ok := f.sentinels[f.code(n)]; ok {
			f.add(n, "take for "+other, "mutantSwap(%d, ", ", "+other+")")
		}
	case *ast.Ident:
		if other, ok := f.sentinels[n.Name]; ok && !isSelected(parent, n) {
			f.add(n, "take for "+other, "mutantSwap(%d, ", ", "+other+")")
		}
	}
	return true
}

// isErrorBranch reports whether n is a branch whose condition asks about an error.
func (f *finder) isErrorBranch(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		return onError.MatchString(f.code(n.Cond))
	case *ast.CaseClause:
		return slices.ContainsFunc(n.List, func(c ast.Expr) bool { return onError.MatchString(f.code(c)) })
	}
	return false
}

// isUnobserved reports whether the list is not empty and all its statements are unobserved.
func (f *finder) isUnobserved(list []ast.Stmt) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(s ast.Stmt) bool {
		_, isCall := s.(*ast.ExprStmt)
		return !isCall || !unobserved.MatchString(f.code(s))
	})
}

func inBlock(parent, n ast.Node) bool {
	switch parent := parent.(type) {
	case *ast.BlockStmt, *ast.CaseClause:
		return true
	case *ast.CommClause:
		return parent.Comm != n
	}
	return false
}

func isSelected(parent ast.Node, n *ast.Ident) bool {
	s, ok := parent.(*ast.SelectorExpr)
	return ok && s.Sel == n
}

func called(n *ast.CallExpr) (name string, ok bool) {
	switch fun := n.Fun.(type) {
	case *ast.Ident:
		name = fun.Name
	case *ast.SelectorExpr:
		name = fun.Sel.Name
	}
	return name, opposites[name] != "" && len(n.Args) == 1
}

// condition makes sites that break a branch: it is never taken, or always.
func (f *finder) condition(c ast.Expr) {
	if b, ok := c.(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
		return // see operands
	}
	if !onError.MatchString(f.code(c)) {
		return
	}
	f.add(c, "never", "!mutantIs(%d) && (", ")")
	if !isErrorCheck(c) {
		f.add(c, "always", "mutantIs(%d) || (", ")")
	}
}

func isErrorCheck(c ast.Expr) bool {
	b, ok := c.(*ast.BinaryExpr)
	if !ok || b.Op != token.NEQ {
		return false
	}
	y, ok := b.Y.(*ast.Ident)
	return ok && y.Name == "nil"
}

// operands makes sites that remove one side of a condition.
func (f *finder) operands(b *ast.BinaryExpr) {
	if !onError.MatchString(f.code(b)) {
		return
	}
	for _, side := range []ast.Expr{b.X, b.Y} {
		switch b.Op {
		case token.LAND:
			f.add(side, "leave out of &&", "(mutantIs(%d) || (", "))")
		case token.LOR:
			f.add(side, "leave out of ||", "(!mutantIs(%d) && (", "))")
		}
	}
}

// initCall makes sites that remove the call of "if err := call(); …".
func (f *finder) initCall(init ast.Stmt) {
	a, ok := init.(*ast.AssignStmt)
	if !ok || len(a.Lhs) != 1 || len(a.Rhs) != 1 {
		return
	}
	name, isName := a.Lhs[0].(*ast.Ident)
	if _, isCall := a.Rhs[0].(*ast.CallExpr); isCall && isName && name.Name == "err" {
		f.add(a.Rhs[0], "leave out", "mutantCall(%d, func() error { return ", " })")
	}
}

// result makes sites that return nil instead of an error, or remove the call whose error is
// returned.
func (f *finder) result(r *ast.ReturnStmt) {
	function := f.functions[len(f.functions)-1]
	if !function.fails || len(r.Results) != function.results {
		return
	}
	last := r.Results[len(r.Results)-1]
	if name, ok := last.(*ast.Ident); ok && name.Name == "nil" {
		return
	}
	if _, ok := last.(*ast.CallExpr); ok && len(r.Results) == 1 {
		f.add(last, "leave out", "mutantCall(%d, func() error { return ", " })")
	} else {
		f.add(last, "return nil for", "mutantCall(%d, func() error { return ", " })")
	}
}

func (f *finder) skip(n ast.Node, kind string) {
	if f.branches > 0 && !unobserved.MatchString(f.code(n)) {
		f.add(n, kind, "if !mutantIs(%d) { ", " }")
	}
}

func (f *finder) add(n ast.Node, kind, before, after string) {
	if slices.ContainsFunc(f.silent, func(c ast.Expr) bool { return c.Pos() <= n.Pos() && n.End() <= c.End() }) {
		return
	}
	position := f.set.Position(n.Pos())
	f.sites = append(f.sites, &site{
		file: f.file, line: position.Line, function: f.functions[0].name, kind: kind,
		text:  strings.Join(strings.Fields(f.code(n)), " "),
		start: position.Offset, end: f.set.Position(n.End()).Offset, before: before, after: after,
	})
}

func (f *finder) code(n ast.Node) string {
	return string(f.source[f.set.Position(n.Pos()).Offset:f.set.Position(n.End()).Offset])
}

// sentinelsOf maps each error variable of a declaration in files to the next one
// of that declaration. prefix is "" within their package, else its name and a dot.
func sentinelsOf(files []*ast.File, prefix string) map[string]string {
	next := map[string]string{}
	for _, file := range files {
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			var names []string
			for _, s := range g.Specs {
				if s := s.(*ast.ValueSpec); len(s.Names) == 1 && len(s.Values) == 1 && isNewError(s.Values[0]) {
					names = append(names, s.Names[0].Name)
				}
			}
			for i, name := range names {
				if len(names) > 1 {
					next[prefix+name] = prefix + names[(i+1)%len(names)]
				}
			}
		}
	}
	return next
}

func isNewError(e ast.Expr) bool {
	c, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := c.Fun.(*ast.SelectorExpr)
	return ok && fmt.Sprint(s.X, s.Sel) == "errors New"
}

// weave returns the source with the given sites woven in. A site is broken while
// the program runs with MUTANT_ON set to its number. No two sites overlap.
func weave(source []byte, chosen map[int]*site) []byte {
	numbers := make([]int, 0, len(chosen))
	for number := range chosen {
		numbers = append(numbers, number)
	}
	slices.SortFunc(numbers, func(a, b int) int { return chosen[a].start - chosen[b].start })
	var out []byte
	at := 0
	for _, number := range numbers {
		s := chosen[number]
		out = append(out, source[at:s.start]...)
		out = fmt.Appendf(out, s.before, number)
		out = append(out, source[s.start:s.end]...)
		out = append(out, s.after...)
		at = s.end
	}
	return append(out, source[at:]...)
}

// switchSource is the file that each package with mutants gets.
const switchSource = `package %s

import (
	"os"
	"strconv"
	"sync"
)

var (
	mutantOn, _   = strconv.Atoi(os.Getenv("MUTANT_ON"))
	mutantReached sync.Map
)

// mutantIs reports whether the mutant is the one that this process runs with. With
// MUTANTS_REACHED set to a file, it notes there that it was called.
func mutantIs(number int) bool {
	if mutantOn == 0 {
		if file := os.Getenv("MUTANTS_REACHED"); file != "" {
			if _, noted := mutantReached.LoadOrStore(number, true); !noted {
				f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
				if err != nil {
					panic(err)
				}
				if _, err := f.WriteString(strconv.Itoa(number) + "\n"); err != nil {
					panic(err)
				}
				f.Close()
			}
		}
	}
	return mutantOn == number
}

func mutantCall(number int, call func() error) error {
	if mutantIs(number) {
		return nil
	}
	return call()
}

func mutantSwap[T any](number int, sound, broken T) T {
	if mutantIs(number) {
		return broken
	}
	return sound
}

var _, _ = mutantCall, mutantSwap[int]
`

// TestSites finds every kind of site in a small file.
func TestSites(t *testing.T) {
	const source = `package p

var (
	ErrA = errors.New("a")
	ErrB = errors.New("b")
)

func f(ctx context.Context) error {
	if err := call(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("calling: %w", err)
	}
	for range 3 {
		if done() {
			continue
		}
		count++
		if errors.Is(call(ctx), ErrA) {
			count--
			if count > 0 && ctx.Err() == nil {
				log.Print("more")
			}
			continue
		}
	}
	switch {
	case late() || late() && ctx.Err() != nil:
		queue <- 1
		return Unknown(ErrA)
	}
	return nil
}
`
	want := []string{
		"leave out: call(ctx)",
		"leave out of &&: err != nil",
		"leave out of &&: ctx.Err() == nil",
		`leave out: fmt.Errorf("calling: %w", err)`,
		"never: errors.Is(call(ctx), ErrA)",
		"always: errors.Is(call(ctx), ErrA)",
		"take for ErrB: ErrA",
		"skip: count--",
		"skip: continue",
		"leave out of ||: late()",
		"leave out of ||: late() && ctx.Err() != nil",
		"leave out of &&: late()",
		"leave out of &&: ctx.Err() != nil",
		"skip: queue <- 1",
		"leave out: Unknown(ErrA)",
		"take for Refused: Unknown",
		"take for ErrB: ErrA",
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	sites := sitesOf(set, "p.go", []byte(source), parsed, sentinelsOf([]*ast.File{parsed}, ""))
	var got []string
	for _, s := range sites {
		got = append(got, s.kind+": "+s.text)
		woven := weave([]byte(source), map[int]*site{1: s})
		if _, err := parser.ParseFile(token.NewFileSet(), "p.go", woven, 0); err != nil {
			t.Errorf("%s cannot be parsed: %v\n%s", s, err, woven)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sites\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
