package report

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// experiment returns an experiment with one version of each outcome.
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

// printed returns an experiment and the summary as the command prints them.
func printed(t *testing.T, e results.Experiment, chinese bool) string {
	t.Helper()
	var out strings.Builder
	timelines, err := NewTimelines(&out, chinese, false)
	if err != nil {
		t.Fatal(err)
	}
	timelines.Write(e)
	timelines.Summary([]results.Experiment{e})
	return out.String()
}

func TestTimelines(t *testing.T) {
	t.Parallel()
	out := printed(t, experiment(), false)
	for _, has := range []string{
		"no-lock: No lock\n\n  flawed: GET, SET\n       0 ms  A   GET stock → 1\n       2 ms  B<  reads",
		"  damage: 1 unit oversold\n\n  fixed: a script\n  damage: 2 units oversold\n  failed: it should do no damage\n",
		"\n  fixed: etcd\n  not run: needs etcd\n\nran 2 of 3 versions; 1 were not as expected\nnot run: no-lock (etcd) needs etcd\n",
	} {
		if !strings.Contains(out, has) {
			t.Errorf("no %q in\n%s", has, out)
		}
	}
}

func TestTimelines_Chinese(t *testing.T) {
	t.Parallel()
	const want = `no-lock: 不加锁

  错误: 先读后写
       0 ms  店铺  读取库存：1
       2 ms  A     GET stock → 1
  损失: 超卖 1 件

  改法: etcd
  未运行: 需要 etcd

运行了 2 个版本中的 1 个，0 个不符合预期
未运行: no-lock (etcd) 需要 etcd
`
	if got := printed(t, results.Experiment{Name: "no-lock", Title: "No lock", TitleChinese: "不加锁", Versions: []results.Version{
		{Title: "GET, SET", TitleChinese: "先读后写", Flawed: true, Damage: "1 unit oversold", DamageChinese: "超卖 1 件", Events: []results.Event{
			{Actor: "shop", ActorChinese: "店铺", Text: "reads the stock: 1", TextChinese: "读取库存：1"}, {Millis: 1.6, Actor: "A", Text: "GET stock → 1"},
		}},
		{Title: "etcd", NotRun: "needs etcd", NotRunChinese: "需要 etcd"},
	}}, true); got != want {
		t.Errorf("%s", got)
	}
}

func TestWritePageOfPitfalls(t *testing.T) {
	t.Parallel()
	page := written(t, &results.Run{Pitfalls: []results.Experiment{experiment()}})
	for _, has := range []string{
		`class="hero alarm"`, "1 of 2 experiments did not turn out as expected", "2 个实验中有 1 个不符合预期", ">No lock<", ">不加锁<",
		`<b class="alarm">1 unit oversold</b>`, ": it should do no damage", ": needs etcd", ">flawed<", ">错误<",
		`<i class="l0 first last dot"></i><i class="l1 off-lane"></i></span><span><b class="actor l0">A</b> GET stock → 1`,
		`<i class="l0 off-lane"></i><i class="l1 first last dot"></i></span><span><b class="actor l1">B&lt;</b> reads a &amp; writes`,
	} {
		if !strings.Contains(page, has) {
			t.Errorf("no %q in\n%s", has, page)
		}
	}
	e := experiment()
	e.Versions = slices.Delete(e.Versions, 1, 2)
	if page := written(t, &results.Run{Pitfalls: []results.Experiment{e}}); !strings.Contains(page, "1 experiments turned out as expected; 1 did not run") || strings.Contains(page, `class="hero alarm"`) {
		t.Error("the page does not say that an experiment did not run, or raises an alarm")
	}
	for _, hasNot := range []string{"Throughput", `class="legend"`} {
		if strings.Contains(page, hasNot) {
			t.Errorf("the page has %q, which is part of a load", hasNot)
		}
	}
}

// TestTimeline checks that the line of an actor goes from its first event to its last one.
func TestTimeline(t *testing.T) {
	t.Parallel()
	var got []string
	for _, row := range timeline(results.Version{Events: []results.Event{{Actor: "A"}, {Actor: "B"}, {Actor: "A"}, {Actor: "B"}}}) {
		got = append(got, strings.Join(row.Lanes, "|"))
	}
	if got, want := strings.Join(got, ", "), "l0 first dot|l1 off-lane, l0|l1 first dot, l0 last dot|l1, l0 off-lane|l1 last dot"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
