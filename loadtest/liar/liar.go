// Package liar builds services that lie, to test that the load generators notice.
package liar

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// changes replace a text that occurs once in one of the module's files.
var changes = []struct{ file, old, new string }{
	{"internal/httpapi/handlers.go", "a.Orders.Place(ctx, req)", "a.lie(ctx, req)"},
	{"internal/httpapi/lifecycle.go", "o, err := change(ctx, id)", "o, err := lieAbout(ctx, id, change)"},
}

// added maps paths in the module to the files with their text.
var added = map[string]string{
	"internal/httpapi/liar.go":     "loadtest/testdata/liar.go",
	"internal/httpapi/lifeliar.go": "loadtest/testdata/lifeliar.go",
}

// All builds cmd/api of the module in the folder root so that it can tell every lie of
// loadtest/testdata. Its name says which one it tells.
func All(t testenv.T, root string) (program string) {
	t.Helper()
	root, err := filepath.Abs(root)
	must(t, err)
	folder, replace := testenv.Folder(t, "liar"), make(map[string]string)
	for path, text := range added {
		replace[filepath.Join(root, path)] = filepath.Join(root, text)
	}
	for i, c := range changes {
		file, changed := filepath.Join(root, c.file), filepath.Join(folder, fmt.Sprint(i, "-", filepath.Base(c.file)))
		text, err := os.ReadFile(file)
		must(t, err)
		if n := strings.Count(string(text), c.old); n != 1 {
			t.Fatalf("%q occurs %d times in %s", c.old, n, file)
		}
		must(t, os.WriteFile(changed, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o600))
		replace[file] = changed
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	must(t, err)
	overlay := filepath.Join(folder, "overlay.json")
	must(t, os.WriteFile(overlay, list, 0o600))
	return testenv.Build(t, "./cmd/api", "-overlay="+overlay)
}

// Named returns the program under another name.
func Named(t testenv.T, program, name string) string {
	t.Helper()
	named := filepath.Join(testenv.Folder(t, "liar"), name)
	must(t, os.Symlink(program, named))
	return named
}

func must(t testenv.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("building a liar: %v", err)
	}
}
