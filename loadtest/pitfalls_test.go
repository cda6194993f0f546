package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/loadtest/pitfall"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// pitfallsHere runs the command within the test, so that the servers outlive it.
func pitfallsHere(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	s, err := parsePitfalls(args, &out)
	if err == nil {
		err = s.run(t.Context(), args, &out)
	}
	code = command.ExitCode(t.Context(), "loadtest", err, &errs)
	return code, out.String(), errs.String()
}

func TestPitfallsUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"no-expiri"}, `must be one of "no-expiry","expiry-second-call",`},
		{[]string{"--db", "postgres://localhost/shop"}, "--db: the experiments use MariaDB or MySQL"},
		{[]string{"--zookeeper", "localhost"}, "--zookeeper: not host:port"},
		{[]string{"--out", "/dev/null/folder"}, "--out: "},
		{[]string{"--clients", "3"}, "unknown flag --clients"},
	} {
		code, stdout, stderr := pitfallsHere(t, test.args...)
		if code != command.ExitUsage || stdout != "" || !strings.Contains(stderr, test.says) {
			t.Errorf("%v: exit code %d, %s%s", test.args, code, stdout, stderr)
		}
	}
}

// TestPitfallsList runs the command as main does.
func TestPitfallsList(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"pitfalls", "--list"}, &out, &out); err != nil {
		t.Fatal(err)
	}
	for _, name := range pitfall.Names() {
		if !strings.Contains(out.String(), "\n"+name+" ") && !strings.HasPrefix(out.String(), name+" ") {
			t.Errorf("no %s in\n%s", name, &out)
		}
	}
}

// TestPitfallsOut adds an experiment that needs no server to the report of a load.
func TestPitfallsOut(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	load, err := results.Read("results/testdata/results.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := load.Write(filepath.Join(folder, "results.json")); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := pitfallsHere(t, "two-databases", "--out", folder)
	if code != command.ExitOK {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, has := range []string{
		"two-databases: Two databases written without write isolation\n", "\n  flawed: each database commits at once",
		"\n  damage: 1 unit sold and still available\n", "\n  fixed: reserve, then confirm or cancel\n", "\n  damage: none\n",
		"\nran 3 of 3 versions; 0 were not as expected\n",
	} {
		if !strings.Contains(stdout, has) {
			t.Errorf("no %q in\n%s", has, stdout)
		}
	}
	run, err := results.Read(filepath.Join(folder, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Strategies) != len(load.Strategies) || len(run.Pitfalls) != 1 || len(run.Pitfalls[0].Versions) != 3 {
		t.Errorf("results.json has %d strategies and the pitfalls %+v", len(run.Strategies), run.Pitfalls)
	}
	page, err := os.ReadFile(filepath.Join(folder, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{"One strategy sold what was not there", "跨两个数据库写入，没有写隔离", "1 unit sold and still available"} {
		if !strings.Contains(string(page), has) {
			t.Errorf("no %q on the page", has)
		}
	}
}

// TestPitfallsNotRun runs an experiment without its server. The experiment must not count as
// passed.
func TestPitfallsNotRun(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	code, stdout, _ := pitfallsHere(t, "no-lock", "process-mutex", "two-databases")
	for _, has := range []string{
		"  not run: needs redis-server\n", "\nran 4 of 7 versions; 0 were not as expected\n",
		"not run: no-lock (GET, compare, SET) needs redis-server\n",
	} {
		if !strings.Contains(stdout, has) {
			t.Errorf("no %q in\n%s", has, stdout)
		}
	}
	if code != command.ExitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestPitfallsUnexpected runs an experiment that does no damage.
func TestPitfallsUnexpected(t *testing.T) {
	t.Parallel()
	harmless := func(context.Context, *pitfall.Stage) pitfall.Damage { return pitfall.Damage{} }
	s := &pitfallSettings{chosen: []pitfall.Pitfall{{Name: "none", Versions: []pitfall.Version{{Flawed: true, Run: harmless}}}}}
	var out bytes.Buffer
	if err := s.run(t.Context(), nil, &out); !errors.Is(err, errUnexpected) || !strings.Contains(out.String(), "\nran 1 of 1 versions; 1 were not as expected\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// TestPitfallsDocumented compares the pages and the recorded output, docs/pitfalls.txt and
// docs/pitfalls.zh-CN.txt, with the table of pitfalls.
func TestPitfallsDocumented(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return "\n" + string(text)
	}
	for file, says := range map[string]struct {
		damage string
		titles func(english, chinese string) string
	}{
		"pitfalls.txt":       {"\n  damage: ", func(english, _ string) string { return english }},
		"pitfalls.zh-CN.txt": {"\n  损失: ", func(_, chinese string) string { return chinese }},
	} {
		output, versions := read(file), 0
		for _, p := range pitfall.Table() {
			wants := []string{"\n" + p.Name + ": " + says.titles(p.Title, p.TitleChinese) + "\n"}
			for _, v := range p.Versions {
				wants = append(wants, ": "+says.titles(v.Title, v.TitleChinese)+"\n")
			}
			for _, want := range wants {
				if !strings.Contains(output, want) {
					t.Errorf("%s: no %q", file, want)
				}
			}
			versions += len(p.Versions)
		}
		if n := strings.Count(output, says.damage); n != versions {
			t.Errorf("%s has the damage of %d versions of %d", file, n, versions)
		}
	}
	for _, page := range []string{"pitfalls.md", "pitfalls.zh-CN.md"} {
		text := read(page)
		for _, p := range pitfall.Table() {
			if !strings.Contains(text, "\n## "+p.Name+"\n") {
				t.Errorf("%s has no section %s", page, p.Name)
			}
		}
		if sections := strings.Count(text, "\n## "); sections != len(pitfall.Table()) {
			t.Errorf("%s has %d sections of %d pitfalls", page, sections, len(pitfall.Table()))
		}
	}
}
