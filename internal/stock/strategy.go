package stock

// Strategy pairs a gate, or none, with a cutter.
type Strategy struct {
	Name string
	// Layout names what instances must agree on to sell the same stock. The
	// ledger remembers the layout that its generation belongs to.
	Layout string
	Gate   Gate // nil: none
	Cutter Cutter
	// Group is the most orders one ledger transaction takes; Parallel is how
	// many transactions may be open at once.
	Group, Parallel int
}
