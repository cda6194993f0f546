package stock

import "testing"

// TestCompare_Bounds checks that the bounds of the gate's difference include 0 whatever orders do
// between the reads of a consistent SKU, and that they reveal damage.
func TestCompare_Bounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name                       string
		before, undelivered, after int64 // available and outbox of the ledger
		gate, inFlight             int64
		least, most                int64
	}{
		{"at rest", 7, 0, 7, 7, 0, 0, 0},
		{"in flight, not committed", 7, 0, 7, 5, 2, -2, 0},
		{"in flight, committed", 5, 0, 5, 5, 2, 0, 2},
		{"sold before the gate was read", 7, 0, 5, 5, 0, -2, 0},
		{"taken before the gate was read, committed after it", 7, 0, 5, 5, 2, -2, 2},
		{"sold after the gate was read", 7, 0, 5, 7, 0, 0, 2},
		{"an addition that was delivered", 17, 10, 17, 17, 0, 0, 10},
		{"an addition that was not delivered", 17, 10, 17, 7, 0, -10, 0},
		{"sold below none without the guard", -3, 0, -5, 0, 0, 0, 0},
		{"too many", 7, 0, 7, 10, 0, 3, 3},
		{"too few", 7, 0, 7, 5, 0, -2, -2},
		{"too few, with units in flight", 7, 0, 7, 3, 2, -4, -2},
		{"too many, while units are sold", 7, 0, 6, 12, 2, 5, 8},
		{"too many in flight only", 7, 0, 7, 7, 3, 0, 3},
		{"fewer than none in flight", 7, 0, 7, 7, -3, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := Units{Available: test.before, Undelivered: test.undelivered}
			c := Compare(before, &Level{Available: test.gate, InFlight: test.inFlight}, Units{Available: test.after})
			if c.Least != test.least || c.Most != test.most {
				t.Errorf("from %d to %d, want from %d to %d", c.Least, c.Most, test.least, test.most)
			}
		})
	}
}

// TestCompare checks the differences of one read, with a gate and without one.
func TestCompare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		units Units
		gate  *Level
		want  Comparison
	}{
		{"all agrees, without a gate", Units{Total: 10, Available: 7, Held: 3}, nil, Comparison{}},
		{"all agrees", Units{Total: 10, Available: 7, Held: 3}, &Level{Available: 5, InFlight: 2}, Comparison{Least: -2}},
		{"the row has too many", Units{Total: 10, Available: 9, Held: 3}, nil, Comparison{Ledger: 2, Drift: 2}},
		{"the row has too many, the gate has not", Units{Total: 10, Available: 9, Held: 3}, &Level{Available: 7}, Comparison{Ledger: 2, Least: -2, Most: -2}},
		{"the gate has too many", Units{Total: 10, Available: 7, Held: 3}, &Level{Available: 11}, Comparison{Drift: 4, Least: 4, Most: 4}},
		{"oversold", Units{Total: 10, Available: -2, Held: 12}, nil, Comparison{Oversold: 2}},
		{"oversold, with a gate", Units{Total: 10, Available: -2, Held: 12}, &Level{}, Comparison{Oversold: 2, Drift: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := Compare(test.units, test.gate, test.units); got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
