package console

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxRows bounds the SKUs of a view.
	maxRows = 50
	// readTimeout bounds one read of the stores.
	readTimeout = 2 * time.Second
	// recountTimeout bounds one recount. A SKU may have many cancelled orders.
	recountTimeout = 250 * time.Millisecond
	// maxRecounts bounds the SKUs of one recount, and maxRecounted their totals. A
	// larger total has more order lines than can be read every second.
	maxRecounts, maxRecounted = 4, 2000
	// recountShare bounds the time that recounts take: to one part in recountShare.
	recountShare = 100
)

// stockPage is what a stream shows of the stock.
type stockPage struct {
	At     float64    `json:"t"` // seconds since 1970
	Prefix stock.SKU  `json:"sku"`
	From   stock.SKU  `json:"from"`
	Next   stock.SKU  `json:"next"` // the first SKU of the following page; empty: this is the last page
	Failed bool       `json:"failed"`
	Rows   []stockRow `json:"rows"`
}

// stockRow has the counts of one SKU.
type stockRow struct {
	SKU    stock.SKU  `json:"sku"`
	Kind   stock.Kind `json:"kind"`
	Total  int64      `json:"total"`
	Ledger int64      `json:"ledger"` // the stock row's available
	// Gate is the gate's available, and InFlight the units taken and not settled. Both are nil
	// without a gate, and while the gate is not filled.
	Gate     *int64 `json:"gate"`
	InFlight *int64 `json:"in_flight"`
	Sold     int64  `json:"sold"`
	Oversold int64  `json:"oversold"`
	Drift    int64  `json:"drift"` // as in admin.Audit
	// Recounted says that Sold was compared with the order lines.
	Recounted bool `json:"recounted"`
}

// jobsPage says which instances hold the jobs.
type jobsPage struct {
	Jobs []jobRow `json:"jobs"`
}

type jobRow struct {
	Name   string `json:"name"`
	Holder string `json:"holder"`
}

// stockReader reads counts. Only one goroutine may use it.
//
// Sold is the total less the stock row's available. Reading it costs one row for each SKU, but it
// is wrong if the row has lost updates. So the reader also recounts small SKUs from their order
// lines, a few at a time, and remembers the difference.
type stockReader struct {
	ledger Ledger
	gate   Gate // nil if there is no gate

	recounts    map[stock.SKU]recount
	nextRecount time.Time
}

// recount is the result of a comparison of a stock row with the order lines.
type recount struct {
	missing   int64 // units sold that the row has not counted
	available int64 // available of the row at the time of the recount
	at        time.Time
}

func newStockReader(l Ledger, g Gate) *stockReader {
	return &stockReader{ledger: l, gate: g, recounts: make(map[stock.SKU]recount)}
}

// read reads the counts of a view. If the stores do not answer, the page has Failed set.
func (r *stockReader) read(ctx context.Context, v view, log *slog.Logger) stockPage {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	page := stockPage{At: float64(time.Now().UnixMilli()) / 1000, Prefix: v.prefix, From: v.from, Rows: []stockRow{}}
	rows, next, err := r.rows(ctx, v)
	if err == nil {
		page.Next = next
		err = r.fill(ctx, &page, rows)
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		log.Warn("reading the stock for the console failed", "error", err)
		page.Failed = true
	}
	return page
}

// rows reads the stock rows of a view, and the SKU that follows them.
func (r *stockReader) rows(ctx context.Context, v view) (rows []ledger.StockRow, next stock.SKU, err error) {
	first := max(v.from, v.prefix)
	if first != "" { // Rows begins after that SKU
		row, err := r.ledger.Row(ctx, first)
		switch {
		case err == nil:
			rows = append(rows, row)
		case !errors.Is(err, stock.ErrUnknownSKU):
			return nil, "", err
		}
	}
	following, err := r.ledger.Rows(ctx, first, maxRows+1)
	if err != nil {
		return nil, "", err
	}
	rows = append(rows, following...)
	for i, row := range rows {
		switch {
		case !strings.HasPrefix(string(row.SKU), string(v.prefix)):
			return rows[:i], "", nil
		case i == maxRows:
			return rows[:i], row.SKU, nil
		}
	}
	return rows, "", nil
}

// fill fills the page with the counts of the rows.
func (r *stockReader) fill(ctx context.Context, page *stockPage, rows []ledger.StockRow) error {
	if len(rows) == 0 {
		return nil
	}
	r.recount(ctx, rows)
	var levels []stock.Level
	var err error
	if r.gate != nil {
		levels, err = r.gate.Levels(ctx, rows)
	}
	for i, row := range rows {
		known, recounted := r.recounts[row.SKU]
		sold := row.Total - row.Available + known.missing
		shown := stockRow{SKU: row.SKU, Kind: row.Kind, Total: row.Total, Ledger: row.Available, Sold: sold, Recounted: recounted}
		var level *stock.Level
		if i < len(levels) && levels[i].Err == nil && levels[i].Filled {
			level = &levels[i]
			shown.Gate, shown.InFlight = &level.Available, &level.InFlight
		}
		units := row.Units()
		units.Held = sold
		found := stock.Compare(units, level, units)
		if shown.Oversold = found.Oversold; r.gate == nil || level != nil {
			shown.Drift = found.Drift
		}
		page.Rows = append(page.Rows, shown)
	}
	return err
}

// recount compares some of the rows with their order lines, if recounts have not taken their share
// of the time. It changes nothing if that fails.
func (r *stockReader) recount(ctx context.Context, rows []ledger.StockRow) {
	start := time.Now()
	if start.Before(r.nextRecount) {
		return
	}
	skus := r.toRecount(rows)
	if len(skus) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recountTimeout)
	defer cancel()
	counts, err := r.ledger.Recount(ctx, skus)
	r.nextRecount = start.Add(time.Since(start) * recountShare)
	if err != nil {
		return
	}
	for _, c := range counts {
		missing := stock.Compare(c.Units(), nil, c.Units()).Ledger
		r.recounts[c.SKU] = recount{missing: missing, available: c.Available, at: start}
	}
}

// toRecount returns the SKUs to recount: those that have changed since their last
// recount, and then those that were recounted longest ago.
func (r *stockReader) toRecount(rows []ledger.StockRow) []stock.SKU {
	var changed, same []stock.SKU
	for _, row := range rows {
		known, recounted := r.recounts[row.SKU]
		switch {
		case row.Total > maxRecounted:
		case !recounted || known.available != row.Available:
			changed = append(changed, row.SKU)
		default:
			same = append(same, row.SKU)
		}
	}
	oldestFirst := func(a, b stock.SKU) int { return r.recounts[a].at.Compare(r.recounts[b].at) }
	slices.SortStableFunc(changed, oldestFirst)
	slices.SortStableFunc(same, oldestFirst)
	all := append(changed, same...)
	return all[:min(len(all), maxRecounts)]
}

// trim forgets all recounts if there are more than twice as many as all views can show.
func (r *stockReader) trim(views int) {
	if len(r.recounts) > 2*maxRows*max(1, views) {
		clear(r.recounts)
	}
}

// jobs reads which instances hold the jobs.
func (r *stockReader) jobs(ctx context.Context) (jobsPage, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	held, err := r.ledger.Jobs(ctx)
	page := jobsPage{Jobs: make([]jobRow, len(held))}
	for i, j := range held {
		page.Jobs[i] = jobRow{Name: j.Name, Holder: j.Holder}
	}
	return page, err
}
