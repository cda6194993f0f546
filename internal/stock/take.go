package stock

import (
	"slices"
	"time"
)

// Take is a deduction that a gate has cut, or that needs no gate.
type Take struct {
	Deduction
	Receipt Receipt
	// QueuedAt is when the order was queued: UTC, whole microseconds. It is zero
	// if the order was not queued. See gate.Journal.
	QueuedAt time.Time
	// Recorded is set by gate.Counter.InFlight. It has the lines of the requested SKUs that still
	// have a record because they were not filled since the take. Its order is not defined.
	Recorded []Line
}

// Receipt has the cut of each line of a deduction, in the order of its lines. It is empty if there
// is no gate, or if the gate's answer was lost.
type Receipt []Cut

// Cut is the gate's cut of one line.
type Cut struct {
	// Epoch is the epoch of the count that the units came from.
	Epoch int64
	// Parts name the segments that the units came from. Parts is empty if the gate does not divide
	// SKUs, or if the segments are not known.
	Parts []Part
}

// Part is the units that one line took from one segment.
type Part struct {
	Segment  int
	Quantity int64
}

// Epoch returns the epoch under which line i was cut, or 0 if no gate cut it.
func (t Take) Epoch(i int) int64 {
	if i < len(t.Receipt) {
		return t.Receipt[i].Epoch
	}
	return 0
}

// Parts returns the segments that line i was cut from, or nil if they are not known.
func (t Take) Parts(i int) []Part {
	if i < len(t.Receipt) {
		return t.Receipt[i].Parts
	}
	return nil
}

// SKUsOf returns the SKUs of the takes, each once, in SKU order.
func SKUsOf(takes ...Take) []SKU {
	skus := make([]SKU, 0, len(takes))
	for _, t := range takes {
		for _, line := range t.Lines {
			if last := len(skus) - 1; last < 0 || skus[last] != line.SKU { // fast path for one hot SKU, which is the usual case
				skus = append(skus, line.SKU)
			}
		}
	}
	slices.Sort(skus)
	return slices.Compact(skus)
}
