//go:build mutants

package mutants

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// wovenTable is the module with all mutants of the table in one build. MUTANT_ON activates one of
// them. Building the programs of a mutant separately would take longer than most tests run.
type wovenTable struct {
	overlay  string                            // the overlay file that the go command reads
	programs map[string]func() (string, error) // by package; each function builds its tests once
	// The value of MUTANT_ON that activates each mutant, by the mutant's name, and why a mutant
	// cannot be built. A mutant that needs its own build has no value.
	numbers map[string]int
	broken  map[string]error
	copies  map[string][]mutantCopy // by the module's file that they replace
}

// mutantCopy is the copy of a function in which a mutant is applied.
type mutantCopy struct {
	mutant      string
	first, last int // first and last line of the function
}

var errNotWoven = errors.New("it is not within the body of a function that another can call")

// weaveTable writes and compiles the module with the mutants in it.
func weaveTable(t *testing.T, root string, table []mutant) (*wovenTable, error) {
	folder := t.TempDir()
	w := &wovenTable{programs: map[string]func() (string, error){}, broken: map[string]error{}}
	for _, m := range table {
		pkg, _, _ := strings.Cut(m.test, " ")
		w.programs[pkg] = sync.OnceValues(func() (string, error) { return buildTests(t, root, w.overlay, folder, pkg) })
	}
	for {
		if err := w.write(root, folder, table); err != nil {
			return nil, err
		}
		compile := exec.CommandContext(t.Context(), "go", "list", "-export", "./...") // go list only compiles, while go build would also link
		compile.Dir, compile.Env = root, append(os.Environ(), overlaying(w.overlay))
		out, err := compile.CombinedOutput()
		if err == nil {
			return w, nil
		}
		before := len(w.broken)
		places, err := refusedBy(out)
		if err != nil {
			return nil, err
		}
		for _, at := range places {
			if !filepath.IsAbs(at.file) {
				at.file = filepath.Join(root, at.file)
			}
			for _, c := range w.copies[at.file] {
				if c.first <= at.line && at.line <= c.last {
					w.broken[c.mutant] = fmt.Errorf("the mutant does not compile: %s", at.message)
				}
			}
		}
		if len(w.broken) == before {
			return nil, fmt.Errorf("compiling the mutants: %w\n%s", err, out)
		}
	}
}

// write writes the broken files and the overlay that names them.
func (w *wovenTable) write(root, folder string, table []mutant) error {
	w.numbers, w.copies = map[string]int{}, map[string][]mutantCopy{}
	files, switches := map[string]*wovenFile{}, map[string]string{}
	for i, m := range table {
		if !strings.HasSuffix(m.file, ".go") || w.broken[m.name] != nil {
			continue
		}
		f := files[m.file]
		if f == nil {
			var err error
			if f, err = parseFile(filepath.Join(root, m.file)); err != nil {
				return err
			}
			files[m.file] = f
			switches[filepath.Dir(m.file)] = f.parsed.Name.Name
		}
		switch err := f.add(m, i+1); {
		case err == nil:
			w.numbers[m.name] = i + 1
		case !errors.Is(err, errNotWoven):
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	o, err := newOverlay(root, folder)
	if err != nil {
		return err
	}
	for name, f := range files {
		text, copies := f.text()
		file, err := o.put(name, text)
		if err != nil {
			return err
		}
		w.copies[file] = copies
	}
	for folder, pkg := range switches {
		if err := o.putSwitch(folder, pkg); err != nil {
			return err
		}
	}
	w.overlay, err = o.save()
	return err
}

// wovenFile is a file with mutants. Each function with mutants begins with a call of the copy whose
// mutant is active.
type wovenFile struct {
	source  []byte
	set     *token.FileSet
	parsed  *ast.File
	inserts map[int]string // texts to insert, by the byte before which they come
	skip    map[int]int    // where the source continues, by the same byte, if an insert replaces a name
	copies  []string
	names   []string // names of the copies' mutants
}

func parseFile(path string) (*wovenFile, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &wovenFile{source: source, set: token.NewFileSet(), inserts: map[int]string{}, skip: map[int]int{}}
	f.parsed, err = parser.ParseFile(f.set, path, source, parser.SkipObjectResolution)
	return f, err
}

func (f *wovenFile) at(p token.Pos) int { return f.set.Position(p).Offset }

// add adds a mutant under a number.
func (f *wovenFile) add(m mutant, number int) error {
	start, err := m.in(f.source)
	if err != nil {
		return err
	}
	end := start + len(m.old)
	for _, d := range f.parsed.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || d.Body == nil || start <= f.at(d.Body.Lbrace) || end > f.at(d.Body.Rbrace) {
			continue
		}
		if d.Name.Name == "init" || recovers(d.Body) {
			break
		}
		suffix := "Mutant" + strconv.Itoa(number)
		f.copies = append(f.copies, string(f.source[f.at(d.Pos()):f.at(d.Name.End())])+suffix+
			string(f.source[f.at(d.Name.End()):start])+m.new+string(f.source[end:f.at(d.End())]))
		f.names = append(f.names, m.name)
		f.inserts[f.at(d.Body.Lbrace)+1] += fmt.Sprintf(" if mutantIs(%d) { %s };", number, f.callOf(d, suffix))
		return nil
	}
	return errNotWoven
}

// recovers reports whether the function itself calls recover. The call has an effect only if this
// function is the deferred one.
func recovers(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			name, ok := n.Fun.(*ast.Ident)
			found = found || ok && name.Name == "recover"
		}
		return !found
	})
	return found
}

// callOf returns the statements that make the function call its copy with the suffix. It gives
// names to unnamed parameters.
func (f *wovenFile) callOf(d *ast.FuncDecl, suffix string) string {
	call := d.Name.Name + suffix
	if d.Recv != nil {
		call = f.namesOf(d.Recv, "mutantReceiver")[0] + "." + call
	} else if d.Type.TypeParams != nil {
		call += "[" + strings.Join(f.namesOf(d.Type.TypeParams, ""), ", ") + "]"
	}
	arguments := f.namesOf(d.Type.Params, "mutantArgument")
	if n := len(arguments); n > 0 {
		if _, variadic := d.Type.Params.List[len(d.Type.Params.List)-1].Type.(*ast.Ellipsis); variadic {
			arguments[n-1] += "..."
		}
	}
	call += "(" + strings.Join(arguments, ", ") + ")"
	if d.Type.Results == nil {
		return call + "; return"
	}
	return "return " + call
}

// namesOf returns the names of the fields. It gives names to unnamed ones.
func (f *wovenFile) namesOf(fields *ast.FieldList, unnamed string) (names []string) {
	for _, field := range fields.List {
		if len(field.Names) == 0 {
			names = append(names, unnamed+strconv.Itoa(len(names)))
			f.inserts[f.at(field.Type.Pos())] = names[len(names)-1] + " "
		}
		for _, name := range field.Names {
			if name.Name == "_" {
				names = append(names, unnamed+strconv.Itoa(len(names)))
				f.inserts[f.at(name.Pos())], f.skip[f.at(name.Pos())] = names[len(names)-1], f.at(name.End())
				continue
			}
			names = append(names, name.Name)
		}
	}
	return names
}

// text returns the source with the calls, followed by the copies.
func (f *wovenFile) text() (text []byte, copies []mutantCopy) {
	var places []int
	for place := range f.inserts {
		places = append(places, place)
	}
	slices.Sort(places)
	at := 0
	for _, place := range places {
		text = append(append(text, f.source[at:place]...), f.inserts[place]...)
		at = max(place, f.skip[place])
	}
	text = append(text, f.source[at:]...)
	for i, c := range f.copies {
		text = append(text, '\n')
		first := bytes.Count(text, []byte("\n")) + 1
		text = append(append(text, c...), '\n')
		copies = append(copies, mutantCopy{f.names[i], first, bytes.Count(text, []byte("\n"))})
	}
	return text, copies
}
