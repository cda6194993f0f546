package results_test

import (
	"fmt"
	"log"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// A load test with --out DIR writes DIR/results.json. The file in this example comes
// from the command that it prints.
func ExampleRead() {
	run, err := results.Read("testdata/results.json")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Command)
	for _, s := range run.Strategies {
		fmt.Printf("%s (sound: %v): sold %d of %d units, oversold %d: %s\n", s.Strategy, s.Sound, s.Sold, s.Stock, s.Oversold, s.Verdict)
	}
	lua := run.Strategies[1]
	fmt.Printf("lua: %s orders found after an instance was killed; p99 %.1f ms\n", lua.Kept(), *lua.P99)
	// Output:
	// go run ./loadtest --strategies none,lua --stock 20 --clients 8 --out loadtest/results/testdata
	// none (sound: false): sold 52 of 20 units, oversold 32: as promised
	// lua (sound: true): sold 20 of 20 units, oversold 0: as promised
	// lua: 13 of 13 orders found after an instance was killed; p99 22.6 ms
}
