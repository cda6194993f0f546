//go:build mutants

package mutants

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

var (
	randomN        = flag.Int("random.n", 0, "the number of random mutants; 0 skips TestRandom")
	randomSeed     = flag.Uint64("random.seed", 0, "draws the mutants; 0 draws the seed")
	randomPackages = flag.String("random.packages", "", "the packages to break, as go list takes them")
	randomTests    = flag.String("random.tests", "", "the packages whose tests may detect a mutant, as go list takes them")
	randomAtOnce   = flag.Int("random.at-once", 3, "the number of test programs that run at once")
)

const (
	module      = "github.com/holdfast-stock/holdfast/"
	stockErrors = "internal/stock"
	// A mutant is detected if a test runs longer than three times its duration on unchanged code
	// plus mutantPatience.
	mutantPatience = 60 * time.Second
)

// goPackage is the output of go list for a package.
type goPackage struct {
	ImportPath, Name, Dir     string
	GoFiles                   []string
	TestGoFiles, XTestGoFiles []string
}

func (p goPackage) path() string { return "./" + strings.TrimPrefix(p.ImportPath, module) }

// TestRandom breaks the code at random. All mutants are woven into one build, in which the
// environment activates one. Each test runs once on unchanged code to learn which mutants it
// reaches. Then each mutant is run with the tests that reach it. A mutant that no test detects is a
// failure, unless equivalent explains it.
func TestRandom(t *testing.T) {
	if *randomN == 0 {
		return // only make mutate runs it
	}
	shareDatabases(t)
	t.Setenv("HOLDFAST_TEST_THOROUGH", "")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	seed := cmp.Or(*randomSeed, uint64(time.Now().UnixNano())%1_000_000)
	t.Logf("seed %d", seed)

	r := &randomRun{root: root, folder: t.TempDir()}
	if err := r.draw(seed, *randomN); err != nil {
		t.Fatal(err)
	}
	if err := r.build(); err != nil {
		t.Fatal(err)
	}
	reached, err := r.reach(t)
	if err != nil {
		t.Fatal(err)
	}
	r.judge(t, reached)
}

// randomRun is one run of random mutants.
type randomRun struct {
	root, folder string
	packages     []goPackage
	mutants      map[int]*site     // mutants by number
	woven        map[string]string // broken files, by the names of the files that they replace
	programs     []program
}

// program is the test program of a package.
type program struct {
	pkg  *goPackage
	file string
}

// list returns the packages that go list finds for the patterns.
func (r *randomRun) list(patterns string) ([]goPackage, error) {
	list := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Dir,GoFiles,TestGoFiles,XTestGoFiles"}, strings.Fields(patterns)...)...)
	list.Dir, list.Stderr = r.root, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", patterns, err)
	}
	var packages []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p goPackage
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// draw chooses n sites that do not overlap.
func (r *randomRun) draw(seed uint64, n int) error {
	var err error
	if r.packages, err = r.list(*randomPackages); err != nil {
		return err
	}
	shared, err := r.list("./" + stockErrors)
	if err != nil {
		return err
	}
	_, sentinels, err := r.parse(shared[0], "stock.")
	if err != nil {
		return err
	}
	var all []*site
	for _, p := range r.packages {
		files, own, err := r.parse(p, "")
		if err != nil {
			return err
		}
		maps.Copy(own, sentinels)
		for _, f := range files {
			all = append(all, sitesOf(f.set, f.name, f.source, f.parsed, own)...)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r.mutants = map[int]*site{}
	for _, s := range all {
		overlaps := false
		for _, o := range r.mutants {
			overlaps = overlaps || o.file == s.file && s.start < o.end && o.start < s.end
		}
		if !overlaps && equivalent[s.key()] == "" {
			r.mutants[len(r.mutants)+1] = s
		}
		if len(r.mutants) == n {
			break
		}
	}
	if len(r.mutants) == 0 {
		return fmt.Errorf("nothing to break in %s", *randomPackages)
	}
	return nil
}

// goFile is a parsed file.
type goFile struct {
	name   string // path relative to the module's root
	set    *token.FileSet
	source []byte
	parsed *ast.File
}

func (r *randomRun) parse(p goPackage, prefix string) (files []goFile, sentinels map[string]string, err error) {
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		f := goFile{set: token.NewFileSet()}
		path := filepath.Join(p.Dir, name)
		if f.name, err = filepath.Rel(r.root, path); err != nil {
			return nil, nil, err
		}
		if f.source, err = os.ReadFile(path); err != nil {
			return nil, nil, err
		}
		if f.parsed, err = parser.ParseFile(f.set, path, f.source, parser.SkipObjectResolution); err != nil {
			return nil, nil, err
		}
		files, parsed = append(files, f), append(parsed, f.parsed)
	}
	return files, sentinelsOf(parsed, prefix), nil
}

// build writes the overlay and compiles the test programs. It leaves out mutants that do not
// compile.
func (r *randomRun) build() error {
	tested, err := r.list(*randomTests)
	if err != nil {
		return err
	}
	for {
		overlay, err := r.overlay()
		if err != nil {
			return err
		}
		compile := exec.Command("go", append([]string{"build", "-gcflags=-e", "-overlay=" + overlay}, pathsOf(r.packages)...)...)
		compile.Dir = r.root
		out, err := compile.CombinedOutput()
		if err == nil {
			break
		}
		before := len(r.mutants)
		places, err := refusedBy(out)
		if err != nil {
			return err
		}
		for _, at := range places {
			r.drop(cmp.Or(r.woven[at.file], at.file), at.line)
		}
		if len(r.mutants) == before {
			return fmt.Errorf("compiling the mutants: %w\n%s", err, out)
		}
	}
	overlay := filepath.Join(r.folder, "overlay.json")
	for i, p := range tested {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		file := filepath.Join(r.folder, fmt.Sprintf("%s%d.test", p.Name, i))
		compile := exec.Command("go", "test", "-c", "-vet=off", "-overlay="+overlay, "-o", file, p.path())
		compile.Dir = r.root
		if out, err := compile.CombinedOutput(); err != nil {
			return fmt.Errorf("compiling the tests of %s: %w\n%s", p.path(), err, out)
		}
		r.programs = append(r.programs, program{&p, file})
	}
	return nil
}

func pathsOf(packages []goPackage) (paths []string) {
	for _, p := range packages {
		paths = append(paths, p.path())
	}
	return paths
}

// drop leaves out the mutants in a line. Weaving does not move lines.
func (r *randomRun) drop(file string, line int) {
	for number, s := range r.mutants {
		source, err := os.ReadFile(filepath.Join(r.root, s.file))
		if err != nil {
			continue
		}
		last := s.line + bytes.Count(source[s.start:s.end], []byte("\n"))
		if s.file == filepath.Clean(file) && s.line <= line && line <= last {
			delete(r.mutants, number)
		}
	}
}

// overlay writes the broken files and the overlay that names them.
func (r *randomRun) overlay() (file string, err error) {
	o, err := newOverlay(r.root, r.folder)
	if err != nil {
		return "", err
	}
	r.woven = make(map[string]string)
	chosen := map[string]map[int]*site{}
	for number, s := range r.mutants {
		if chosen[s.file] == nil {
			chosen[s.file] = map[int]*site{}
		}
		chosen[s.file][number] = s
	}
	for name, sites := range chosen {
		source, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return "", err
		}
		woven, err := o.put(name, weave(source, sites))
		if err != nil {
			return "", err
		}
		r.woven[woven] = name
	}
	for _, p := range r.packages {
		if err := o.putSwitch(p.path(), p.Name); err != nil {
			return "", err
		}
	}
	return o.save()
}

// reachingTest is a test that reaches a mutant.
type reachingTest struct {
	program program
	test    string
	took    time.Duration
}

// reach runs each test by itself on unchanged code, and returns by mutant the tests that reach it,
// the fastest first.
func (r *randomRun) reach(t *testing.T) (map[int][]reachingTest, error) {
	var lock sync.Mutex
	reached := map[int][]reachingTest{}
	var runs errgroup.Group
	runs.SetLimit(*randomAtOnce)
	for _, p := range r.programs {
		out, err := r.command(t, p, nil, "-test.list=^Test").Output()
		if err != nil {
			return nil, fmt.Errorf("listing the tests of %s: %w", p.pkg.path(), err)
		}
		for _, test := range strings.Fields(string(out)) {
			runs.Go(func() error {
				notes := filepath.Join(r.folder, p.pkg.Name+"."+test+".reached")
				start := time.Now()
				run := r.command(t, p, []string{"MUTANTS_REACHED=" + notes}, "-test.run=^"+test+"$", "-test.timeout=9m")
				out, err := run.CombinedOutput()
				if err != nil {
					t.Logf("left out: %s %s fails on sound code: %v\n%s", p.pkg.path(), test, err, tail(out))
					return nil
				}
				w := reachingTest{p, test, time.Since(start)}
				numbers, err := os.ReadFile(notes)
				if errors.Is(err, os.ErrNotExist) {
					return nil
				} else if err != nil {
					return err
				}
				lock.Lock()
				defer lock.Unlock()
				for _, text := range slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(numbers))))) {
					number, err := strconv.Atoi(text)
					if err != nil {
						return err
					}
					reached[number] = append(reached[number], w)
				}
				return nil
			})
		}
	}
	err := runs.Wait()
	for _, tests := range reached {
		slices.SortFunc(tests, func(a, b reachingTest) int { return cmp.Compare(a.took, b.took) })
	}
	return reached, err
}

// judge runs the tests of each mutant until one fails.
func (r *randomRun) judge(t *testing.T, reached map[int][]reachingTest) {
	var lock sync.Mutex
	detected, survivors := 0, []string{}
	var runs errgroup.Group
	runs.SetLimit(*randomAtOnce)
	for _, number := range slices.Sorted(maps.Keys(r.mutants)) {
		runs.Go(func() error {
			by := r.detect(t, number, reached[number])
			lock.Lock()
			defer lock.Unlock()
			if by != "" {
				detected++
				t.Logf("detected by %s: %s", by, r.mutants[number])
				return nil
			}
			survivors = append(survivors, fmt.Sprintf("%s (reached by %d tests)", r.mutants[number], len(reached[number])))
			return nil
		})
	}
	if err := runs.Wait(); err != nil {
		t.Error(err)
	}
	slices.Sort(survivors)
	t.Logf("%d mutants, %d detected", len(r.mutants), detected)
	for _, s := range survivors {
		t.Errorf("survived: %s", s)
	}
}

// alone is the number of a mutant's tests that run one by one, before the others of each package
// run together.
const alone = 3

// detect runs the tests, and returns those that fail with the mutant, or "".
func (r *randomRun) detect(t *testing.T, number int, reaching []reachingTest) string {
	single := min(alone, len(reaching))
	for _, w := range reaching[:single] {
		if r.fails(t, number, w.program, w.took, w.test) {
			return w.program.pkg.path() + " " + w.test
		}
	}
	for _, p := range r.programs {
		var tests []string
		var took time.Duration
		for _, w := range reaching[single:] {
			if w.program == p {
				tests, took = append(tests, w.test), took+w.took
			}
		}
		if len(tests) > 0 && r.fails(t, number, p, took, tests...) {
			return fmt.Sprintf("%s, one of %d tests", p.pkg.path(), len(tests))
		}
	}
	return ""
}

// fails reports whether one of the tests fails on the mutant.
func (r *randomRun) fails(t *testing.T, number int, p program, took time.Duration, tests ...string) bool {
	limit := 3*took + mutantPatience
	_, err := r.command(t, p, []string{"MUTANT_ON=" + strconv.Itoa(number)},
		"-test.run=^("+strings.Join(tests, "|")+")$", "-test.failfast", "-test.timeout="+limit.String()).CombinedOutput()
	return err != nil
}

// command returns a run of the program. Programs that its tests build are mutated
// too.
func (r *randomRun) command(t *testing.T, p program, env []string, args ...string) *exec.Cmd {
	run := exec.CommandContext(t.Context(), p.file, args...)
	run.Dir = p.pkg.Dir
	run.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+filepath.Join(r.folder, "overlay.json"))
	run.Env = append(run.Env, env...)
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	run.WaitDelay = 10 * time.Second
	return run
}

// tail returns the last part of the output of a test.
func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }
