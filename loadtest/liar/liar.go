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

// Change replaces a text that occurs once in one of the module's files.
type Change struct{ File, Old, New string }

// Build builds cmd/api of the module in the folder root with some files changed.
func Build(t testenv.T, root string, changes ...Change) (program string) {
	t.Helper()
	return build(t, root, nil, changes...)
}

// All builds a service that can tell every lie of loadtest/testdata. Its name says which
// one it tells.
func All(t testenv.T, root string) (program string) {
	t.Helper()
	files := map[string]string{
		"internal/httpapi/liar.go":     "loadtest/testdata/liar.go",
		"internal/httpapi/lifeliar.go": "loadtest/testdata/lifeliar.go",
	}
	return build(t, root, files,
		Change{"internal/httpapi/handlers.go", "a.Orders.Place(ctx, req)", "a.lie(ctx, req)"},
		Change{"internal/httpapi/lifecycle.go", "o, err := change(ctx, id)", "o, err := lieAbout(ctx, id, change)"},
	)
}

// Named returns the program under another name.
func Named(t testenv.T, program, name string) string {
	t.Helper()
	named := filepath.Join(testenv.Folder(t, "liar"), name)
	must(t, os.Symlink(program, named))
	return named
}

// build also adds files: added maps their paths in the module to the files with their text.
func build(t testenv.T, root string, added map[string]string, changes ...Change) (program string) {
	t.Helper()
	root, err := filepath.Abs(root)
	must(t, err)
	folder, replace := testenv.Folder(t, "liar"), make(map[string]string)
	for path, text := range added {
		replace[filepath.Join(root, path)] = filepath.Join(root, text)
	}
	for i, c := range changes {
		file, changed := filepath.Join(root, c.File), filepath.Join(folder, fmt.Sprint(i, "-", filepath.Base(c.File)))
		text, err := os.ReadFile(file)
		must(t, err)
		if n := strings.Count(string(text), c.Old); n != 1 {
			t.Fatalf("%q occurs %d times in %s", c.Old, n, file)
		}
		must(t, os.WriteFile(changed, []byte(strings.Replace(string(text), c.Old, c.New, 1)), 0o600))
		replace[file] = changed
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	must(t, err)
	overlay := filepath.Join(folder, "overlay.json")
	must(t, os.WriteFile(overlay, list, 0o600))
	return testenv.Build(t, "./cmd/api", "-overlay="+overlay)
}

func must(t testenv.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("building a liar: %v", err)
	}
}
