// Package docs checks the pages of this repository. Links must lead somewhere, and named tests must
// exist. A page in Chinese must have the same structure as its English twin.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const (
	root    = ".."
	chinese = ".zh-CN.md"
)

// page has the parts of a Markdown file that the tests compare.
type page struct {
	text     string
	headings []string // headings with their level: "## Stores"
	anchors  map[string]bool
	links    []string
	blocks   []string // blocks of code: the language, and the lines if readers type them
	rows     []string // rows of tables: the number of columns, and the code in the first
}

var (
	heading  = regexp.MustCompile(`^#{1,6} `)
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	codeSpan = regexp.MustCompile("`[^`]+`")
	testName = regexp.MustCompile(`\bTest[A-Z]\w*`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	comment  = regexp.MustCompile(`\s+(#|//) .*$`)
)

// parse reads Markdown in the style of this repository: headings begin with #, code is fenced, and
// a row of a table is a line that begins with |.
func parse(text string) page {
	p := page{text: text, anchors: make(map[string]bool)}
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence:
			if fenced = !fenced; fenced {
				p.blocks = append(p.blocks, language)
			}
		case fenced:
			block := &p.blocks[len(p.blocks)-1]
			if language, _, _ := strings.Cut(*block, "\n"); language != "" && language != "mermaid" {
				*block += "\n" + comment.ReplaceAllString(line, "")
			}
		default:
			p.add(line)
		}
	}
	return p
}

func (p *page) add(line string) {
	switch {
	case heading.MatchString(line):
		p.headings = append(p.headings, line)
		_, title, _ := strings.Cut(line, " ")
		name := anchor(title)
		for n := 1; p.anchors[name]; n++ {
			name = fmt.Sprintf("%s-%d", anchor(title), n)
		}
		p.anchors[name] = true
	case strings.HasPrefix(line, "|"):
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "/"), "|")
		p.rows = append(p.rows, fmt.Sprint(len(cells)-2, codeSpan.FindAllString(cells[1], -1)))
	}
	for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
		p.links = append(p.links, m[1])
	}
}

// anchor returns the name that GitHub gives a heading.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

// pages returns the Markdown files of the repository by their path in it.
func pages(t *testing.T) map[string]page {
	t.Helper()
	found := make(map[string]page)
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || name != "." && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case path.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		found[name] = parse(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestLinks checks that every link to a file or a heading of the repository is valid, and that
// Chinese pages link to Chinese pages.
func TestLinks(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for name, p := range all {
		for _, to := range p.links {
			if strings.Contains(to, "://") {
				continue
			}
			file, fragment, _ := strings.Cut(to, "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, to)
				continue
			}
			if fragment != "" && path.Ext(target) == ".md" && !all[target].anchors[fragment] {
				t.Errorf("%s links to %s; %s has no such heading", name, to, target)
			}
			stem, ours := strings.CutSuffix(name, chinese)
			twin := strings.TrimSuffix(target, ".md") + chinese
			if _, exists := all[twin]; ours && exists && target != stem+".md" {
				t.Errorf("%s links to %s, which there is in Chinese: %s", name, to, twin)
			}
		}
	}
}

// TestTestsExist checks that every test that a page names exists. The changelog may name removed
// tests.
func TestTestsExist(t *testing.T) {
	t.Parallel()
	exists := make(map[string]bool)
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			exists[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range pages(t) {
		for _, test := range testName.FindAllString(p.text, -1) {
			if name != "CHANGELOG.md" && !exists[test] {
				t.Errorf("%s names %s, which does not exist", name, test)
			}
		}
	}
}

// TestTwins compares each Chinese page with its English twin: the headings, the tables with the
// code in their first column, and the commands and output in code blocks, without comments.
func TestTwins(t *testing.T) {
	t.Parallel()
	all := pages(t)
	twins := 0
	for name, p := range all {
		stem, ok := strings.CutSuffix(name, chinese)
		if !ok {
			continue
		}
		twins++
		english, exists := all[stem+".md"]
		if !exists {
			t.Errorf("%s has no twin", name)
			continue
		}
		same(t, name, "headings", levels(p.headings), levels(english.headings))
		same(t, name, "rows of tables", p.rows, english.rows)
		same(t, name, "blocks of code", p.blocks, english.blocks)
		if !slices.Contains(p.links, path.Base(stem+".md")) || !slices.Contains(english.links, path.Base(name)) {
			t.Errorf("%s and its twin do not link to each other", name)
		}
	}
	if twins == 0 {
		t.Error("there are no pages in Chinese")
	}
}

// levels returns headings without their titles, which are translated.
func levels(headings []string) []string {
	var all []string
	for _, h := range headings {
		level, _, _ := strings.Cut(h, " ")
		all = append(all, level)
	}
	return all
}

// same reports the first difference between a page and its twin.
func same(t *testing.T, name, what string, got, want []string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("%s: %s: number %d is\n%s\nand that of its twin\n%s", name, what, i+1, got[i], want[i])
			return
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s has %d %s, its twin %d", name, len(got), what, len(want))
	}
}
