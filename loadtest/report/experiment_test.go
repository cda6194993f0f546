package report

import (
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// experiment has one version of each outcome.
func experiment() results.Experiment {
	return results.Experiment{Name: "no-lock", Title: "No lock", TitleChinese: "不加锁", Versions: []results.Version{
		{Title: "GET, SET", Flawed: true, Damage: "1 unit oversold", Events: []results.Event{
			{Millis: 0, Actor: "A", Text: "GET stock → 1"},
			{Millis: 1.6, Actor: "B<", Text: "reads a & writes something that is so long that it does not fit into one line of the drawing"},
		}},
		{Title: "a script", Fault: "it should do no damage", Damage: "2 units oversold"},
		{Title: "etcd", NotRun: "needs etcd"},
	}}
}

func TestWriteExperiment(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	WriteExperiment(&out, experiment(), false)
	WriteSummary(&out, []results.Experiment{experiment()})
	for _, has := range []string{
		"no-lock: No lock\n\n  flawed: GET, SET\n       0 ms  A   GET stock → 1\n       2 ms  B<  reads",
		"  damage: 1 unit oversold\n\n  mended: a script\n  damage: 2 units oversold\n  FAILED: it should do no damage\n",
		"\n  mended: etcd\n  not run: needs etcd\n",
		"\nran 2 of 3 versions; 1 were not as expected\nnot run: no-lock (etcd) needs etcd\n",
	} {
		if !strings.Contains(out.String(), has) {
			t.Errorf("no %q in\n%s", has, &out)
		}
	}
}

func TestWritePageOfPitfalls(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := WritePage(&out, &results.Run{Pitfalls: []results.Experiment{experiment()}}); err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{
		"1 of 2 experiments did not turn out as expected", "2 个实验中有 1 个不符合预期", "No lock · 不加锁",
		`<span class="alarm">1 unit oversold</span>`, "failed 失败: it should do no damage", "not run 未运行: needs etcd",
		`>B&lt;</tspan> reads a &amp; writes`,
	} {
		if !strings.Contains(out.String(), has) {
			t.Errorf("no %q in\n%s", has, &out)
		}
	}
	if strings.Contains(out.String(), "Throughput") {
		t.Error("the page has the charts of a load")
	}
	if n := strings.Count(out.String(), "<circle "); n != 2 {
		t.Errorf("%d events are drawn, want 2", n)
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	if got := strings.Join(wrap("one two three, four", 9), "|"); got != "one two|three,|four" {
		t.Error(got)
	}
}
