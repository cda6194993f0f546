package report

import (
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

func read(t *testing.T) *results.Run {
	t.Helper()
	run, err := results.Read("../results/testdata/results.json")
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// search turns the run into a search with one broken promise.
func search(run *results.Run) *results.Run {
	highest := 700
	run.Flags["search"] = "true"
	for i := range run.Strategies {
		run.Strategies[i].Rate, run.Strategies[i].Highest = 700, &highest
	}
	run.Strategies[0].Verdict, run.Strategies[0].Faults = results.Broken, []string{"no order was accepted"}
	return run
}

// lifecycle turns the run into a lifecycle load with one oversold unit.
func lifecycle(run *results.Run) *results.Run {
	run.Flags["lifecycle"] = "true"
	for i := range run.Strategies {
		run.Strategies[i].Lifecycle = &results.Lifecycle{Orders: 100, Paid: 61, Cancelled: 12, Expired: 20, Refunded: 7, Revived: 5, Payments: 90, RefundsDue: 29}
	}
	run.Strategies[1].Oversold, run.Strategies[1].Lifecycle = 1, nil
	return run
}

func TestWriteTable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		run    *results.Run
		has    []string
		hasNot []string
	}{
		{"rush", read(t), []string{"  oversold  undersold  ", "after kill -9", "13 of 13", "as promised"}, []string{"highest rate", "caught"}},
		{"search", search(read(t)), []string{"highest rate", "dropped", "promise broken", "none: no order was accepted\n"}, []string{"oversold", "undersold"}},
		{"lifecycle", lifecycle(read(t)), []string{"orders  paid  cancelled  expired  refunded  revived  refunds due  oversold  failed  verdict", "  61         12       20         7        5           29  ", "–"}, []string{"p99", "after kill -9"}},
	} {
		var out strings.Builder
		WriteTable(&out, test.run, false)
		for _, has := range test.has {
			if !strings.Contains(out.String(), has) {
				t.Errorf("%s: no %q in\n%s", test.name, has, out.String())
			}
		}
		for _, hasNot := range test.hasNot {
			if strings.Contains(out.String(), hasNot) {
				t.Errorf("%s: %q in\n%s", test.name, hasNot, out.String())
			}
		}
	}
}

func TestWritePage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		run    *results.Run
		charts int
		has    []string
	}{
		{"rush", read(t), 4, []string{"Every strategy kept its promise", "每个策略都符合其承诺", "Stock over time · 库存随时间的变化", "符合承诺", "13 of 13"}},
		{"search", search(read(t)), 2, []string{"1 of 2 strategies broke their promise", "2 个策略中有 1 个违背了承诺", "The highest rate · 最高到达率"}},
		{"lifecycle", lifecycle(read(t)), 2, []string{"refunds due<span>待退</span>", "<td>61</td><td>12</td><td>20</td><td>7</td><td>5</td><td>90</td><td>29</td>", `<td class="alarm">1</td>`}},
		{"nothing measured", &results.Run{}, 4, []string{"No strategy was measured", "没有测得任何结果"}},
	} {
		var out strings.Builder
		if err := WritePage(&out, test.run); err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if n := strings.Count(out.String(), "<svg "); n != 2*test.charts { // each for a desktop and for a phone
			t.Errorf("%s: %d drawings of %d charts", test.name, n, test.charts)
		}
		for _, has := range test.has {
			if !strings.Contains(out.String(), has) {
				t.Errorf("%s: no %q", test.name, has)
			}
		}
	}
}
