package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// sampleEvery is how many of a client's answers there are to one that is
	// looked up at once.
	sampleEvery = 8
	// samplesAtOnce bounds these look-ups: the service needs its connections.
	samplesAtOnce = 4
	// ordersAtOnce are looked up, or deleted, with one statement.
	ordersAtOnce = 500
	// readersBack read the accepted orders back from the service.
	readersBack = 16
)

// sample looks an order up the moment its 201 is there: it must be committed.
// While others are being looked up it does nothing.
func (l *lab) sample(ctx context.Context, rec *record, a answer) {
	if l.sql == nil || a.outcome != accepted {
		return
	}
	select {
	case l.samples <- struct{}{}:
		defer func() { <-l.samples }()
	default:
		return
	}
	found, err := l.orders(ctx, []string{a.order.ID})
	switch _, there := found[a.order.ID]; {
	case ctx.Err() != nil:
		return
	case err == nil && !there:
		rec.find(early, a.order.String())
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.sampled++
	if rec.trouble == nil {
		rec.trouble = err
	}
}

// String names the order for people.
func (o order) String() string { return fmt.Sprintf("%q for buyer %q", o.ID, o.Buyer) }

// differs says in what got is not the order o, if it is found at all. A request
// has no status.
func (o order) differs(got order, found bool) kind {
	switch {
	case !found:
		return missing
	case got.Buyer != o.Buyer:
		return otherBuyer
	case !slices.Equal(got.Lines, o.Lines):
		return otherLines
	case o.Status != "" && got.Status != o.Status:
		return otherStatus
	}
	return ""
}

// holdAnswers holds every 201 against its request, the others and the stores, and
// every order in the ledger against the answers.
func (l *lab) holdAnswers(ctx context.Context, rec *record, f *fleet, sku string) error {
	promised := make(map[string]order) // by ID: what was asked for, with the status that was answered
	for _, a := range rec.answers {
		if a.outcome != accepted {
			continue
		}
		if a.order.ID == "" || a.asked.differs(a.order, true) != "" {
			rec.find(wrongAnswer, fmt.Sprintf("%v, where %q had asked", a.order, a.asked.Buyer))
		}
		if a.order.ID == "" {
			continue
		}
		if _, twice := promised[a.order.ID]; twice {
			rec.find(repeated, a.order.String())
			continue
		}
		o := a.asked
		o.ID, o.Status = a.order.ID, a.order.Status
		promised[o.ID] = o
	}
	l.readBack(ctx, rec, promised, f.url(0))
	if l.sql == nil {
		return nil
	}
	for ids := range slices.Chunk(keys(promised), ordersAtOnce) {
		found, err := l.orders(ctx, ids)
		if err != nil {
			return err
		}
		for _, id := range ids {
			got, there := found[id]
			if wrong := promised[id].differs(got, there); wrong != "" {
				rec.find(wrong, promised[id].String())
			}
		}
	}
	return l.holdLedger(ctx, rec, promised, sku)
}

// keys are sorted, so that two audits of the same name the same order first.
func keys(of map[string]order) []string {
	ids := make([]string, 0, len(of))
	for id := range of {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// holdLedger looks for orders of the SKU that no 201 named: only those of buyers
// who do not know what became of theirs may be there.
func (l *lab) holdLedger(ctx context.Context, rec *record, promised map[string]order, sku string) error {
	answers := make(map[string]answer, len(rec.answers))
	for _, a := range rec.answers {
		answers[a.asked.Buyer] = a
	}
	rows, err := l.sql.DB().WithContext(ctx).Raw(`SELECT orders.id, orders.buyer_id FROM order_lines
		JOIN orders ON orders.id = order_lines.order_id
		WHERE order_lines.sku = ? AND orders.status IN ('pending', 'paid') ORDER BY orders.id`, sku).Rows()
	if err != nil {
		return fmt.Errorf("listing the orders of %s: %w", sku, err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id uuid.UUID
			o  order
		)
		if err := rows.Scan(&id, &o.Buyer); err != nil {
			return fmt.Errorf("listing the orders of %s: %w", sku, err)
		}
		o.ID = id.String()
		if _, known := promised[o.ID]; known {
			continue
		}
		a, asked := answers[o.Buyer]
		switch {
		case !asked || a.outcome == accepted:
			rec.find(unasked, o.String())
		case !a.open():
			rec.find(denied, fmt.Sprintf("%v, who was answered %s", o, a.failure()))
		default:
			a.outcome = accepted // there may be one order for it
			answers[o.Buyer] = a
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("listing the orders of %s: %w", sku, err)
	}
	return nil
}

// orders reads the orders with these IDs. Absent ones are left out, as are void
// ones, which never were orders. What is no ID names none.
func (l *lab) orders(ctx context.Context, ids []string) (map[string]order, error) {
	var columns []any
	for _, text := range ids {
		if id, err := uuid.Parse(text); err == nil {
			columns = append(columns, l.column(id))
		}
	}
	found := make(map[string]order, len(columns))
	if len(columns) == 0 {
		return found, nil
	}
	db := l.sql.DB().WithContext(ctx)
	rows, err := db.Raw(`SELECT orders.id, orders.buyer_id, orders.status, order_lines.sku, order_lines.quantity
		FROM orders LEFT JOIN order_lines ON order_lines.order_id = orders.id
		WHERE orders.id IN ? AND orders.status <> 'void' ORDER BY orders.id, order_lines.sku`, columns).Rows()
	if err != nil {
		return nil, fmt.Errorf("looking up orders: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id       uuid.UUID
			o        order
			sku      *string
			quantity *int64
		)
		if err := rows.Scan(&id, &o.Buyer, &o.Status, &sku, &quantity); err != nil {
			return nil, fmt.Errorf("looking up orders: %w", err)
		}
		o.ID = id.String()
		o.Lines = found[o.ID].Lines
		if sku != nil {
			o.Lines = append(o.Lines, line{*sku, *quantity})
		}
		found[o.ID] = o
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("looking up orders: %w", err)
	}
	return found, nil
}

// column is an ID as the database's column takes it.
func (l *lab) column(id uuid.UUID) any {
	if l.sql.Dialect() == store.Postgres {
		return id.String()
	}
	return id[:]
}

// readBack asks the service for every order that was promised. Without a database
// its word is all there is.
func (l *lab) readBack(ctx context.Context, rec *record, promised map[string]order, url string) {
	ids := make(chan string)
	var all sync.WaitGroup
	for range readersBack {
		all.Go(func() {
			for id := range ids {
				var got order
				err := l.getJSON(ctx, url+"/orders/"+id, &got)
				wrong := promised[id].differs(got, err == nil && got.ID == id)
				if wrong == "" {
					continue
				}
				if l.sql != nil {
					wrong = unread
				}
				rec.find(wrong, promised[id].String())
			}
		})
	}
	for id := range promised {
		ids <- id
	}
	close(ids)
	all.Wait()
}
