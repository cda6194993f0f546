package pitfall

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler)) // experiments kill servers, whose failed dials would be logged
	os.Exit(testenv.Main(m))
}

// servers returns the shared servers of the tests. It skips the test if the version's
// server is not installed and skipping is allowed.
func servers(t *testing.T, v Version) Servers {
	t.Helper()
	running := make(Servers)
	switch {
	case v.Own && testenv.Installed(string(v.Needs)):
	case v.Needs == Redis && v.Own:
		testenv.OwnRedis(t)
	case v.Needs == Redis:
		running[Redis] = testenv.Redis(t)
	case v.Needs == MariaDB:
		running[MariaDB] = testenv.MariaDB(t)
	case v.Needs == ZooKeeper:
		running[ZooKeeper] = testenv.ZooKeeper(t)
	case v.Needs == Etcd:
		testenv.OwnEtcd(t)
	}
	return running
}

// TestPitfalls runs every experiment. Each flawed version must do damage, and each fix must not:
// ten times in a thorough run, otherwise once.
func TestPitfalls(t *testing.T) {
	t.Parallel()
	runs := 1
	if testenv.Thorough() {
		runs = 10
	}
	for _, p := range Table() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			var versions sync.WaitGroup // run together, because they mostly wait for leases
			defer versions.Wait()
			for _, v := range p.Versions {
				running := servers(t, v)
				versions.Go(func() {
					for range runs {
						check(t, v.run(t.Context(), running))
					}
				})
			}
		})
	}
}

// check fails the test unless the version ran and ended as expected.
func check(t *testing.T, v results.Version) {
	var timeline strings.Builder
	for _, e := range v.Events {
		fmt.Fprintf(&timeline, "%8.1f ms  %-2s  %s\n", e.Millis, e.Actor, e.Text)
	}
	if v.Fault != "" || v.NotRun != "" {
		t.Errorf("%s: %s%s\n%s", v.Title, v.Fault, v.NotRun, &timeline)
		return
	}
	if (v.DamageChinese == "") != (v.Damage == "") || untranslated.MatchString(v.DamageChinese) {
		t.Errorf("%s: damage %q in Chinese", v.Title, v.DamageChinese)
	}
	for _, e := range v.Events {
		if untranslated.MatchString(e.TextChinese) && !strings.HasPrefix(e.Text, "EVAL") { // a script is shown by its comment
			t.Errorf("%s: %q in Chinese", v.Title, e.TextChinese)
		}
	}
	t.Logf("%s: damage %q\n%s", v.Title, v.Damage, &timeline)
}

// untranslated matches words that do not occur in commands or statements.
var untranslated = regexp.MustCompile(`\b(refused|lost|is|has|the|without|and|with|of)\b`)

// TestChinese checks that every text of a timeline has a Chinese translation, and that the table
// has no other texts.
func TestChinese(t *testing.T) {
	t.Parallel()
	word, verb := regexp.MustCompile(`[a-z]{2}`), regexp.MustCompile(`%[^a-z]*[a-z]`)
	used := map[string]bool{
		"accepted": true, "refused: sold out": true, "refused: the lock has been granted to another holder": true, // texts of takeText
		"the lock was lost: the connection was lost": true, // text of an error
		"true": true, "false": true,
		"it should sell all units": true, "it should do damage, and did none": true, "it should do no damage": true,
	}
	texts := map[string]bool{"at": true, "units": true, "unsold": true, "lost": true, "awaitExpiry": true}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !texts[calledName(call)] {
				return true
			}
			for _, arg := range call.Args {
				literal, ok := arg.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					continue
				}
				if text, _ := strconv.Unquote(literal.Value); word.MatchString(verb.ReplaceAllString(text, "")) {
					used[text] = true
				}
			}
			return true
		})
	}
	for text := range used {
		if chinese[text] == "" {
			t.Errorf("%q has no Chinese twin", text)
		}
	}
	for text, twin := range chinese {
		if !used[text] {
			t.Errorf("nothing uses %q", text)
		}
		if len(verb.FindAllString(twin, -1)) != len(verb.FindAllString(text, -1)) && len(verb.FindAllString(text, -1)) > 0 {
			t.Errorf("%q and %q have different arguments", text, twin)
		}
	}
}

// calledName returns the name of the function or method that is called.
func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// TestVerdicts checks the verdict on a version by its damage.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	damage := func(n int) func(context.Context, *Stage) Damage {
		return func(context.Context, *Stage) Damage { return sale(3+n, 3) }
	}
	left := func(units, number string, flawed bool) results.Version {
		return results.Version{
			Flawed: flawed, Damage: units + " left, although an order was refused", DamageChinese: "还剩 " + number + " 件，却拒绝了订单",
			Fault: "it should sell all units", FaultChinese: "本应卖完全部",
		}
	}
	for _, test := range []struct {
		version Version
		want    results.Version
	}{
		{Version{Flawed: true, Run: damage(1)}, results.Version{Flawed: true, Damage: "1 unit oversold", DamageChinese: "超卖 1 件"}},
		{Version{Flawed: true, Run: damage(0)}, results.Version{Flawed: true, Fault: "it should do damage, and did none", FaultChinese: "本应造成损失，却没有"}},
		{Version{Run: damage(0)}, results.Version{}},
		{Version{Run: damage(2)}, results.Version{Damage: "2 units oversold", DamageChinese: "超卖 2 件", Fault: "it should do no damage", FaultChinese: "本不应造成损失"}},
		{Version{Run: damage(-1)}, left("1 unit", "1", false)},
		{Version{Run: damage(-2)}, left("2 units", "2", false)},
		{Version{Flawed: true, Run: damage(-1)}, left("1 unit", "1", true)},
		{Version{Needs: "no-such-server", Run: damage(0)}, results.Version{NotRun: "needs no-such-server", NotRunChinese: "需要 no-such-server"}},
		{Version{Run: func(_ context.Context, s *Stage) Damage { s.Fatalf("no answer"); return Damage{} }}, results.Version{Fault: "no answer", FaultChinese: "no answer"}},
	} {
		if got := test.version.run(t.Context(), Servers{}); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%+v, want %+v", got, test.want)
		}
	}
}

// TestServerFails checks that a server that cannot be stopped, because it has ended, is a fault of
// the version. A panic would end the other versions.
func TestServerFails(t *testing.T) {
	t.Parallel()
	testenv.OwnRedis(t) // or skips the test
	r := Version{Run: func(_ context.Context, s *Stage) Damage {
		server := testenv.OwnRedis(s)
		server.Kill()
		server.Stop()
		return Damage{}
	}}.run(t.Context(), Servers{})
	if !strings.Contains(r.Fault, "Redis: it has ended") {
		t.Errorf("the fault is %q", r.Fault)
	}
}

// TestStageCleansUp checks that cleanups run in reverse order, even after Fatalf.
func TestStageCleansUp(t *testing.T) {
	t.Parallel()
	var order []int
	_, events, err := perform(t.Context(), Servers{}, func(_ context.Context, s *Stage) Damage {
		s.Cleanup(func() { order = append(order, 1) })
		s.Cleanup(func() { order = append(order, 2) })
		s.at("A", "token %d of %s", 1795327458543372, s.key("stock"))
		s.Fatalf("stopped")
		return Damage{}
	})
	if !slices.Equal(order, []int{2, 1}) || err == nil || err.Error() != "stopped" {
		t.Errorf("cleanups %v, error %v", order, err)
	}
	if len(events) != 1 || events[0].Text != "token …543372 of stock" || events[0].TextChinese != events[0].Text {
		t.Errorf("%+v", events)
	}
}
