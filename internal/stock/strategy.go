package stock

// Strategy pairs a gate, or none, with a cutter.
type Strategy struct {
	Name string
	// Layout names what a gate must agree on to share a count: a stock row
	// remembers the layout it was last sold under.
	Layout string
	Gate   Gate // nil: none
	Cutter Cutter
	// Group is the most orders one ledger transaction takes; Parallel is how
	// many transactions may be open at once.
	Group, Parallel int
}
