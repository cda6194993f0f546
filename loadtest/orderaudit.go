package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

const (
	// sampleEvery is the number of a client's answers per sample.
	sampleEvery = 8
	// maxSamples bounds the samples under way, so that they leave database connections
	// for the service.
	maxSamples = 4
	// maxIDs bounds the orders that one statement looks up or deletes.
	maxIDs = 500
	// maxReaders bounds the orders that are read back from the service at a time.
	maxReaders = 16
)

// sample looks up an order right after its 201, when the order must be committed. It does nothing
// if maxSamples other samples are under way.
func (l *loading) sample(ctx context.Context, a answer) {
	if l.sql == nil || a.outcome != accepted {
		return
	}
	select {
	case l.samples <- struct{}{}:
		defer func() { <-l.samples }()
	default:
		return
	}
	stored, err := l.ordersWith(ctx, []string{a.order.ID})
	switch _, found := stored[a.order.ID]; {
	case ctx.Err() != nil:
		return
	case err == nil && !found:
		l.rec.find(results.Early, a.order.String())
	}
	l.rec.mu.Lock()
	defer l.rec.mu.Unlock()
	l.rec.sampled++
	if l.rec.sampleErr == nil {
		l.rec.sampleErr = err
	}
}

// String names the order in findings.
func (o order) String() string { return fmt.Sprintf("%q for buyer %q", o.ID, o.BuyerID) }

// differs describes how got differs from o. The status counts only if o has one; a request has none.
func (o order) differs(got order) results.Kind {
	switch {
	case got.BuyerID != o.BuyerID:
		return results.OtherBuyer
	case !slices.Equal(got.Lines, o.Lines):
		return results.OtherLines
	case o.Status != "" && got.Status != o.Status:
		return results.OtherStatus
	}
	return ""
}

// checkAnswers compares every 201 and 202 with its request, with the other answers and with the
// stores. It then compares every order in the ledger with the answers.
func (l *loading) checkAnswers(ctx context.Context) error {
	promised := promisedOrders(l.rec)
	l.readBack(ctx, promised, l.fleet.url(0))
	if l.sql == nil {
		return nil
	}
	ids := slices.Sorted(maps.Keys(promised)) // sorted, so that repeated audits name the same order first
	for chunk := range slices.Chunk(ids, maxIDs) {
		stored, err := l.ordersWith(ctx, chunk)
		if err != nil {
			return err
		}
		for _, id := range chunk {
			kind := results.Missing
			if got := stored[id]; got != nil {
				kind = promised[id].differs(got.order)
			}
			if kind != "" {
				l.rec.find(kind, promised[id].String())
			}
		}
	}
	return l.checkLedger(ctx, promised)
}

// promisedOrders returns the orders of all 201s by ID: the lines and buyer of the request, and the
// status of the answer. An order that was answered 202 has the status that lab.follow found.
func promisedOrders(rec *record) map[string]order {
	promised := make(map[string]order)
	for _, a := range rec.answers {
		if a.outcome != accepted && a.outcome != turnedDown {
			continue
		}
		if a.order.ID == "" || a.asked.differs(a.order) != "" {
			rec.find(results.WrongAnswer, fmt.Sprintf("%v, requested by %q", a.order, a.asked.BuyerID))
		}
		if a.order.ID == "" {
			continue
		}
		if _, twice := promised[a.order.ID]; twice {
			rec.find(results.Repeated, a.order.String())
			continue
		}
		o := a.asked
		o.ID, o.Status, o.CreatedAt, o.ExpiresAt = a.order.ID, a.order.Status, a.order.CreatedAt, a.order.ExpiresAt
		promised[o.ID] = o
	}
	return promised
}

// checkLedger looks for orders of the SKU that no answer named. Only a request with an unknown
// outcome may have such an order. Each buyer has one request, which may have been repeated under
// its key.
func (l *loading) checkLedger(ctx context.Context, promised map[string]order) error {
	answers := make(map[string]answer, len(l.rec.answers))
	for _, a := range l.rec.answers {
		answers[a.asked.BuyerID] = a
	}
	stored, err := l.ordersWhere(ctx, "orders.id"+withSKU+" AND orders.status IN ('pending', 'paid')", l.sku)
	if err != nil {
		return err
	}
	served := make(map[string]bool) // buyers whose only request already has its order
	for id := range stored {
		if p, known := promised[id]; known {
			served[p.BuyerID] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(stored)) {
		if _, known := promised[id]; known {
			continue
		}
		o := stored[id]
		a, asked := answers[o.BuyerID]
		switch {
		case served[o.BuyerID]:
			l.rec.find(results.Doubled, o.String())
		case !asked || a.outcome == accepted:
			l.rec.find(results.Unasked, o.String())
		case !a.unknown():
			l.rec.find(results.Denied, fmt.Sprintf("%v, answered %s", o.order, a.Failure()))
		default:
			served[o.BuyerID] = true
		}
	}
	return nil
}

// ordersWith returns the orders with these IDs. It leaves out malformed IDs.
func (l *lab) ordersWith(ctx context.Context, ids []string) (map[string]*storedOrder, error) {
	var columns []any
	for _, text := range ids {
		if id, err := uuid.Parse(text); err == nil {
			columns = append(columns, l.column(id))
		}
	}
	return l.ordersWhere(ctx, "orders.id IN ?", columns)
}

// withSKU is the SQL condition that an ID belongs to an order with a line of the SKU, the parameter.
const withSKU = " IN (SELECT order_id FROM order_lines WHERE sku = ?)"

// ordersWhere returns the orders that meet the condition, by ID, without their history and payments.
// It leaves out void orders, which the service does not count as orders.
func (l *lab) ordersWhere(ctx context.Context, condition string, parameter any) (map[string]*storedOrder, error) {
	stored := make(map[string]*storedOrder)
	err := l.sql.Ledger().QueryEach(ctx, func(rows *sql.Rows) error {
		var (
			id       uuid.UUID
			o        = &storedOrder{}
			sku      *string
			quantity *int64
		)
		if err := rows.Scan(&id, &o.BuyerID, &o.Status, &o.payment, &o.restocked, &sku, &quantity); err != nil {
			return err
		}
		o.ID = id.String()
		o = cmp.Or(stored[o.ID], o)
		stored[o.ID] = o
		if sku != nil {
			o.Lines = append(o.Lines, line{SKU: *sku, Quantity: *quantity})
		}
		return nil
	}, `SELECT orders.id, orders.buyer_id, orders.status, orders.payment_id, orders.restocked, order_lines.sku, order_lines.quantity
		FROM orders LEFT JOIN order_lines ON order_lines.order_id = orders.id
		WHERE orders.status <> 'void' AND `+condition+` ORDER BY orders.id, order_lines.sku`, parameter)
	if err != nil {
		return nil, fmt.Errorf("reading orders: %w", err)
	}
	return stored, nil
}

// column converts an ID to the type of the database's column.
func (l *lab) column(id uuid.UUID) any {
	return l.sql.Ledger().Dialect().UUID(id)
}

// readBack reads every promised order from the service. Without a database, this is the
// only check of the orders.
func (l *loading) readBack(ctx context.Context, promised map[string]order, url string) {
	var readers errgroup.Group
	readers.SetLimit(maxReaders)
	for id, want := range promised {
		readers.Go(func() error {
			status, got := l.look(ctx, url, id)
			kind := results.Missing
			if status == http.StatusOK && got.ID == id {
				kind = want.differs(got)
			}
			if kind == "" && want.ExpiresAt != nil && (got.ExpiresAt == nil || !got.ExpiresAt.Equal(*want.ExpiresAt)) {
				kind = results.OtherExpiry
			}
			if kind != "" && kind != results.OtherExpiry && l.sql != nil {
				kind = results.Unread
			}
			if kind != "" {
				l.rec.find(kind, want.String())
			}
			return nil
		})
	}
	_ = readers.Wait()
}
