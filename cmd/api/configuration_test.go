package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/commandline"
)

var update = flag.Bool("update", false, "write the tables of docs/configuration.md")

// TestConfigurationPage compares the tables of docs/configuration.md with the tags of
// config: each group of flags is the table below the heading with its name.
//
//	go test ./cmd/api -run TestConfigurationPage -update
func TestConfigurationPage(t *testing.T) {
	const file = "../../docs/configuration.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := page
	tables := make(map[string]string)
	for _, f := range commandline.New(new(config), options()...).Model.Flags {
		if f.Group != nil {
			tables[strings.TrimSuffix(f.Group.Key, ":")] += row(f)
		}
	}
	for group, rows := range tables {
		old := regexp.MustCompile(`(?m)^## ` + group + `\n\n(\|.*\n)+`)
		if len(old.FindAll(want, -1)) != 1 {
			t.Fatalf("the page must have one table below the heading %q", group)
		}
		want = old.ReplaceAllLiteral(want, []byte("## "+group+"\n\n| flag | default | meaning |\n|---|---|---|\n"+rows))
	}
	switch {
	case *update:
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
	case !bytes.Equal(page, want):
		t.Error("the tables differ from the tags of config: run go test ./cmd/api -run TestConfigurationPage -update")
	}
}

// code matches text in code font on the page: addresses, flags and paths.
var code = regexp.MustCompile(`\S*(?:://|h1:p1)(?:\S*[^\s,;.])?|--[a-z-]+|/[a-z/]+`)

// row returns the row of a flag in its table.
func row(f *kong.Flag) string {
	value := f.Default
	if f.IsBool() && value == "" {
		value = "off"
	}
	if value != "" {
		value = "`" + value + "`"
	}
	meaning := code.ReplaceAllString(f.Help, "`$0`")
	return fmt.Sprintf("| `--%s` | %s | %s |\n", f.Name, value, strings.ReplaceAll(meaning, "|", `\|`))
}

// TestChinesePage compares the flags and the defaults of the two pages.
func TestChinesePage(t *testing.T) {
	t.Parallel()
	firstColumns := regexp.MustCompile("(?m)^\\| `--[^|]*\\|[^|]*\\|")
	var found [2][]string
	for i, file := range []string{"configuration.md", "configuration.zh-CN.md"} {
		page, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found[i] = firstColumns.FindAllString(string(page), -1)
	}
	if !slices.Equal(found[0], found[1]) {
		t.Errorf("the English page has\n%s\nthe Chinese one\n%s", strings.Join(found[0], "\n"), strings.Join(found[1], "\n"))
	}
}
