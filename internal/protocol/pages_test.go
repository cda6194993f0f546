package protocol

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPages checks that docs/protocol.md and its Chinese twin name the same tests
// for their rules.
func TestPages(t *testing.T) {
	t.Parallel()
	english, chinese := covered(t, "../../docs/protocol.md"), covered(t, "../../docs/protocol.zh-CN.md")
	if len(english) == 0 {
		t.Error("docs/protocol.md names no tests")
	}
	for _, row := range english {
		if !slices.Contains(chinese, row) {
			t.Errorf("docs/protocol.zh-CN.md lacks %s", row)
		}
	}
	if len(chinese) != len(english) {
		t.Errorf("docs/protocol.zh-CN.md has %d rules with tests, docs/protocol.md has %d", len(chinese), len(english))
	}
}

// covered returns the cells of the last section's table that no language changes: the
// tests of each rule.
func covered(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## 11. ")
	_, rows, _ := strings.Cut(section, "|---|---|\n")
	var cells []string
	for row := range strings.Lines(rows) {
		if rule, rest, found := strings.Cut(strings.TrimPrefix(row, "| "), " | "); found && rule != "" {
			cells = append(cells, strings.TrimSpace(rest))
		}
	}
	return cells
}
