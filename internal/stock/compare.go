package stock

// Units are the units of one SKU as the ledger has them at one moment.
type Units struct {
	Total       int64
	Available   int64 // available of the stock row; below 0 after overselling without the guard
	Held        int64 // units in the orders that hold them
	Undelivered int64 // additions in the outbox, which the gate may not have yet
}

// Comparison has the differences between the counts of one SKU. Every number is 0 if they agree.
type Comparison struct {
	Oversold int64 // units that orders hold beyond the total
	Ledger   int64 // units by which the stock row is too high; below 0: too low
	// Drift is available + in flight + held - total. available and in flight are the gate's;
	// without a gate, available is the stock row's. Drift is exact while no order is under way.
	Drift int64
	// The gate's count is at least Least and at most Most units too high. A negative number means
	// too low. Both are equal while no order is under way.
	Least, Most int64
}

// Compare compares the counts of one SKU: those of the gate, and those that the ledger had before
// and after the gate was read. gate is nil without a gate. before and after may be the same read.
// No units must have been added to the stock row in between.
//
// If all counts are correct, the row's available is the sum of the gate's available, the units
// taken and not committed, and the undelivered units. Two of these numbers are known only within
// bounds. The units taken and not committed are between 0 and the units in flight. Available only
// falls while nothing is added. So at the time of the gate's count, the row's available was between
// those of before and after. An available below 0 counts as 0, because a fill also treats it as 0.
func Compare(before Units, gate *Level, after Units) Comparison {
	c := Comparison{
		Oversold: max(0, after.Held-after.Total),
		Ledger:   after.Available + after.Held - after.Total,
	}
	if gate == nil {
		c.Drift = c.Ledger
		return c
	}
	c.Drift = gate.Available + gate.InFlight + after.Held - after.Total
	c.Least = gate.Available - max(before.Available, 0)
	c.Most = gate.Available + max(gate.InFlight, 0) + before.Undelivered - max(after.Available, 0)
	return c
}
