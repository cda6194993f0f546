package table_test

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
)

func Example() {
	t := table.New("strategy", "orders/s", "p99 ms", "verdict")
	t.Add("lua", 18641, table.Figure("%.1f", 4.65), "as promised")
	t.Add("none", 3184, table.Figure("%.1f", math.NaN()))
	t.WriteMarkdown(os.Stdout)
	// Output:
	// | strategy | orders/s | p99 ms | verdict |
	// |---|---|---|---|
	// | lua | 18641 | 4.7 | as promised |
	// | none | 3184 | – | |
}

func TestWriteText(t *testing.T) {
	t.Parallel()
	if got := table.Optional("%d", new(int64(0))); got != "0" {
		t.Errorf("a known 0 is %s", got)
	}
	rows := table.New("strategy", "p99 ms", "verdict")
	rows.Add("lua", table.Optional[float64]("%.2f", nil), "as promised")
	rows.Add("none", "21.61", table.Cell{Text: "broken", Alarm: true})
	for colors, want := range map[bool]string{
		false: "strategy  p99 ms  verdict      \nlua            –  as promised  \nnone       21.61  broken       \n",
		true:  "strategy  p99 ms  verdict      \nlua            –  as promised  \nnone       21.61  \x1b[31;1mbroken     \x1b[0m  \n",
	} {
		var out strings.Builder
		rows.WriteText(&out, colors)
		if out.String() != want {
			t.Errorf("colors %v:\n%q, want\n%q", colors, out.String(), want)
		}
	}
}
