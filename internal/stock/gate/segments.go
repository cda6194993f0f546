package gate

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// MaxSegments bounds the segments of one SKU.
const MaxSegments = 64

// separator cannot be part of a SKU.
const separator = "/"

// segmentOf returns the name under which segment n of sku is counted.
func segmentOf(sku stock.SKU, n int) stock.SKU { return sku + separator + stock.SKU(strconv.Itoa(n)) }

// splitSegment returns the SKU and the number of a segment.
func splitSegment(segment stock.SKU) (sku stock.SKU, n int) {
	at := strings.LastIndex(string(segment), separator)
	if at < 0 {
		return segment, 0
	}
	n, _ = strconv.Atoi(string(segment[at+1:]))
	return segment[:at], n
}

// divides reports whether SKUs are divided into segments.
func (l Layout) divides() bool { return l.Segments > 0 }

// segmentsOf returns the segments of the SKUs, those of each SKU together. It returns SKUs that are
// not divided unchanged.
func (l Layout) segmentsOf(skus ...stock.SKU) []stock.SKU {
	if !l.divides() {
		return skus
	}
	segments := make([]stock.SKU, 0, len(skus)*l.Segments)
	for _, sku := range skus {
		for n := range l.Segments {
			segments = append(segments, segmentOf(sku, n))
		}
	}
	return segments
}

// everywhere returns the take of all segments that t may have cut. A line with unknown segments
// becomes a line in every segment. Only the segments with records of the take matter.
func (l Layout) everywhere(t stock.Take) stock.Take {
	if !l.divides() {
		return t
	}
	receipt := make(stock.Receipt, len(t.Lines))
	for i, line := range t.Lines {
		if receipt[i].Parts = t.Parts(i); receipt[i].Parts != nil {
			continue
		}
		for n := range l.Segments {
			receipt[i].Parts = append(receipt[i].Parts, stock.Part{Segment: n, Quantity: line.Quantity})
		}
	}
	return stock.Take{Deduction: divided(stock.Take{Deduction: t.Deduction, Receipt: receipt})}
}

// lineOf returns the index of the SKU's line, or -1.
func lineOf(lines []stock.Line, sku stock.SKU) int {
	return slices.IndexFunc(lines, func(line stock.Line) bool { return line.SKU == sku })
}

// divided returns the deduction of the segments that t takes: a line for each part.
func divided(t stock.Take) stock.Deduction {
	var lines []stock.Line
	for i, line := range t.Lines {
		for _, part := range t.Parts(i) {
			lines = append(lines, stock.Line{SKU: segmentOf(line.SKU, part.Segment), Quantity: part.Quantity})
		}
	}
	stock.SortLines(lines)
	d := t.Deduction
	d.Lines = lines
	return d
}

// undivided returns the take whose parts are the lines of a deduction of segments. Its
// receipt has no epochs.
func undivided(segments stock.Deduction) stock.Take {
	byLine := make(map[stock.SKU][]stock.Part)
	t := stock.Take{Deduction: segments}
	t.Lines = nil
	for _, line := range segments.Lines {
		sku, n := splitSegment(line.SKU)
		at := lineOf(t.Lines, sku)
		if at < 0 {
			at = len(t.Lines)
			t.Lines = append(t.Lines, stock.Line{SKU: sku})
		}
		t.Lines[at].Quantity += line.Quantity
		byLine[sku] = append(byLine[sku], stock.Part{Segment: n, Quantity: line.Quantity})
	}
	stock.SortLines(t.Lines)
	for _, line := range t.Lines {
		t.Receipt = append(t.Receipt, stock.Cut{Parts: byLine[line.SKU]})
	}
	return t
}

// undivide makes takes of SKUs out of takes of segments, in place.
func (l Layout) undivide(takes []stock.Take) {
	if !l.divides() {
		return
	}
	for i, t := range takes {
		takes[i] = undivided(t.Deduction)
		takes[i].Recorded = undivided(stock.Deduction{Lines: t.Recorded}).Lines
	}
}

// share returns the units that segment n of count gets. The remainder goes to the
// segments from first on.
func share(units int64, n, count, first int) int64 {
	part := units / int64(count)
	if int64((n-first+count)%count) < units%int64(count) {
		part++
	}
	return part
}

// fills returns the fills of all segments, those of each SKU together. They spread the
// units evenly, and the remainder over the first segments.
func (l Layout) fills(of []stock.Fill) []stock.Fill {
	if !l.divides() {
		return of
	}
	fills := make([]stock.Fill, 0, len(of)*l.Segments)
	for _, f := range of {
		for n := range l.Segments {
			fills = append(fills, stock.Fill{SKU: segmentOf(f.SKU, n), Epoch: f.Epoch, Units: share(f.Units, n, l.Segments, 0)})
		}
	}
	return fills
}

// changes returns each segment's share of the addition.
func (l Layout) changes(of stock.Change) []stock.Change {
	if !l.divides() {
		return []stock.Change{of}
	}
	changes := make([]stock.Change, l.Segments)
	for n := range changes {
		changes[n] = of
		changes[n].SKU = segmentOf(of.SKU, n)
		changes[n].Delta = share(of.Delta, n, l.Segments, int(of.Number%int64(l.Segments)))
	}
	return changes
}

// refusalOf turns the refusal of a segment into a refusal of its SKU. It returns
// any other error as it is.
func refusalOf(sku stock.SKU, err error) error {
	var refusal *stock.Refusal
	if errors.As(err, &refusal) {
		return stock.Refuse(sku, refusal.Reason)
	}
	return err
}

// sumOf returns the level of the SKU with these levels of its segments.
func sumOf(sku stock.SKU, segments []stock.Level) stock.Level {
	sum := stock.Level{SKU: sku, Filled: true}
	for _, segment := range segments {
		if segment.Err != nil {
			return stock.Level{SKU: sku, Err: segment.Err}
		}
		sum.Epoch = max(sum.Epoch, segment.Epoch)
		sum.Available += segment.Available
		sum.InFlight += segment.InFlight
	}
	for _, segment := range segments {
		if !segment.Filled || segment.Epoch != sum.Epoch {
			return stock.Level{SKU: sku, Epoch: sum.Epoch}
		}
	}
	return sum
}
