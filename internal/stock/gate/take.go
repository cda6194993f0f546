package gate

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxParts bounds the lines of one take at Script and ReadWrite. take.lua encodes
// their number in one byte. A segmented gate has a line for each part.
const maxParts = 255

// errDeduction means that the caller passed a malformed deduction.
var errDeduction = errors.New("malformed deduction")

// validate rejects malformed deductions before anything is written. It allows a
// quantity up to stock.MaxTotal, because an administrator may remove that many
// units at once.
func validate(d stock.Deduction) error {
	if len(d.Lines) == 0 || len(d.Lines) > maxParts {
		return fmt.Errorf("%w: %d lines", errDeduction, len(d.Lines))
	}
	for _, line := range d.Lines {
		if line.Quantity < 1 || line.Quantity > stock.MaxTotal {
			return fmt.Errorf("%w: %d units of SKU %s", errDeduction, line.Quantity, line.SKU)
		}
	}
	return nil
}

// cut is a request to cut lines of a deduction in one step, all or none.
type cut struct {
	d       stock.Deduction
	tokens  tokenSet
	lines   []stock.Line  // all lines of d, or on a cluster one line
	journal *journalEntry // nil unless the order is queued

	// The answer.
	receipt stock.Receipt // receipt of the lines
	already bool          // an earlier call of the same take cut these lines
	err     error         // error of this cut in a batch
}

// takeWith takes d with calls of run. On one server it makes one call, and on a cluster one for
// each line. If a line is refused, takeWith gives back the earlier lines.
func (c *Counter) takeWith(ctx context.Context, tokens tokenSet, d stock.Deduction, run func(context.Context, *cut) error) (stock.Take, error) {
	if err := validate(d); err != nil {
		return stock.Take{}, err
	}
	receipt := make(stock.Receipt, len(d.Lines))
	if !c.cluster {
		if err := run(ctx, &cut{d: d, tokens: tokens, lines: d.Lines, receipt: receipt}); err != nil {
			return stock.Take{}, err
		}
		return stock.Take{Deduction: d, Receipt: receipt}, nil
	}
	var done []stock.Line // lines that this call has cut; lines that the same take cut earlier are not given back
	for i := range d.Lines {
		part := &cut{d: d, tokens: tokens, lines: d.Lines[i : i+1], receipt: receipt[i : i+1]}
		err := run(ctx, part)
		switch {
		case err == nil && !part.already:
			done = append(done, d.Lines[i])
		case err == nil:
		case !stock.NothingTaken(err): // the outcome is open, and the caller gives all lines back
			return stock.Take{}, err
		default:
			d.Lines = done // empty if the first line is refused, which needs no call
			if giveErr := c.give(ctx, tokens, stock.Take{Deduction: d}); giveErr != nil {
				return stock.Take{}, partLeft(giveErr)
			}
			return stock.Take{}, err
		}
	}
	return stock.Take{Deduction: d, Receipt: receipt}, nil
}

// partLeft returns the error of a take that was refused after a part of it was cut and could not be
// given back. It does not wrap giveErr, which may say that nothing was changed, although the take
// cut some lines.
func partLeft(giveErr error) error {
	return fmt.Errorf("giving back what was cut before a refusal: %v", giveErr)
}

// The reasons for which take.lua refuses a take. If several apply, take.lua answers the greatest
// one. A missing count, another take of the order or a later generation matters more than "sold
// out".
const (
	soldOut         = 1
	notFilled       = 2
	inFlight        = 3
	burned          = 4
	laterGeneration = 5
	queueFull       = 6 // queueFull and the next reason are given only if no other reason applies
	queueClosed     = 7
)

func refusal(reason int64, sku stock.SKU) error {
	switch reason {
	case soldOut:
		return stock.Refuse(sku, stock.ErrSoldOut)
	case notFilled:
		return stock.Refuse(sku, stock.ErrNotFilled)
	case inFlight:
		return stock.ErrInFlight
	case burned:
		return stock.ErrBurned
	case laterGeneration:
		return stock.Refuse(sku, stock.ErrLaterGeneration)
	case queueFull:
		return stock.Busy(errQueueFull)
	case queueClosed:
		return stock.Busy(errQueueClosed)
	}
	return fmt.Errorf("the gate's script answered with the unknown reason %d", reason)
}
