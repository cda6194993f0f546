package gate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxClaimPages bounds the pages of pending orders that one Claim looks
	// through.
	maxClaimPages = 100
	// maxConsumerIdle is how long a consumer without pending orders may not call
	// before it is removed.
	maxConsumerIdle = time.Minute
	// consumers is the journal's consumer group. settle.lua, finish.lua and leave.lua
	// have the name too.
	consumers = "instances"
	// orderField is the field of a stream entry that has the order's ID.
	orderField = "order"
)

// These scripts read and change no counts. So they need not be those of a generation,
// and instances of every strategy can run them.
var (
	//go:embed finish.lua
	finishLua string
	//go:embed leave.lua
	leaveLua string
	//go:embed redeliver.lua
	redeliverLua string
)

// QueuedOrders is the stock.QueuedOrders of a ledger on one server, for strategies
// whose gate has no journal.
type QueuedOrders struct {
	client          redis.UniversalClient
	journal, queued string // keys
}

var _ stock.QueuedOrders = (*QueuedOrders)(nil)

// NewQueuedOrders returns the queued orders of the ledger, or nil on a cluster, which
// has no journal.
func NewQueuedOrders(client redis.UniversalClient, ledgerID uuid.UUID) *QueuedOrders {
	c := newCounts(client, ledgerID)
	if c.cluster {
		return nil
	}
	q := queuedOrdersOf(&c)
	return &q
}

func queuedOrdersOf(c *counts) QueuedOrders {
	return QueuedOrders{client: c.client, journal: c.journalKey(), queued: c.queuedKey()}
}

// Queued returns the take of a queued order.
func (q *QueuedOrders) Queued(ctx context.Context, order uuid.UUID) (stock.Take, error) {
	text, err := q.client.HGet(ctx, q.queued, order.String()).Result()
	if errors.Is(err, redis.Nil) {
		return stock.Take{}, stock.ErrNotQueued
	}
	if err != nil {
		return stock.Take{}, fmt.Errorf("looking for order %s in the journal: %w", order, err)
	}
	return parseEntry(order.String(), text)
}

// parseEntry returns the take of an order from its entry under the key queued.
func parseEntry(order, text string) (stock.Take, error) {
	fields := strings.Fields(text)
	if len(fields) != 6 && len(fields) != 7 {
		return stock.Take{}, fmt.Errorf("order %q in the journal: %w", order, errRecord)
	}
	t, err := parseTake(order, fields[1], fields[3:])
	if err != nil {
		return stock.Take{}, fmt.Errorf("order %q in the journal: %w", order, err)
	}
	for epoch := range strings.SplitSeq(fields[2], ",") {
		n, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return stock.Take{}, fmt.Errorf("order %q in the journal: %w: epoch %q", order, errRecord, epoch)
		}
		t.Receipt = append(t.Receipt, stock.Cut{Epoch: n})
	}
	if len(t.Receipt) != len(t.Lines) {
		return stock.Take{}, fmt.Errorf("order %q in the journal: %w: %d epochs", order, errRecord, len(t.Receipt))
	}
	return t, nil
}

// Open creates the consumer group, and checks that the server knows the newest of the
// commands that the journal needs, XAUTOCLAIM of Redis 6.2.
func (q *QueuedOrders) Open(ctx context.Context, consumer string) error {
	if err := q.createGroup(ctx); err != nil {
		return err
	}
	_, _, err := q.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: q.journal, Group: consumers, Consumer: consumer, MinIdle: math.MaxInt64, Start: "0-0", Count: 1,
	}).Result()
	if redis.HasErrorPrefix(err, "unknown command") {
		return fmt.Errorf("%w: Redis 6.2 or later is needed: %w", stock.ErrNoJournal, err)
	}
	if err != nil {
		return fmt.Errorf("opening the journal: %w", err)
	}
	return nil
}

// Read delivers new orders to the consumer.
func (q *QueuedOrders) Read(ctx context.Context, consumer string, limit int, wait time.Duration) ([]stock.Take, error) {
	ctx, cancel := context.WithTimeout(ctx, max(wait, 0)+callTimeout) // otherwise a frozen server keeps the call for longer
	defer cancel()
	streams, err := q.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: consumers, Consumer: consumer, Streams: []string{q.journal, ">"},
		Count: int64(limit), Block: wait,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case redis.HasErrorPrefix(err, "NOGROUP"):
		return nil, q.createGroup(ctx)
	case err != nil:
		return nil, fmt.Errorf("reading the journal: %w", err)
	case len(streams) == 0:
		return nil, nil
	}
	return q.takesOf(ctx, streams[0].Messages)
}

// createGroup creates the consumer group. It delivers all orders in the journal
// again, those too that a lost group had delivered.
func (q *QueuedOrders) createGroup(ctx context.Context) error {
	err := q.client.XGroupCreateMkStream(ctx, q.journal, consumers, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") { // another instance created it
		return fmt.Errorf("creating the journal's consumer group: %w", err)
	}
	return nil
}

// Claim delivers orders to the consumer that others have not finished.
func (q *QueuedOrders) Claim(ctx context.Context, consumer string, limit int, idle time.Duration) ([]stock.Take, error) {
	var found []string // message IDs
	start := "0-0"
	for range maxClaimPages {
		page, next, err := q.client.XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{
			Stream: q.journal, Group: consumers, Consumer: consumer,
			MinIdle: idle, Start: start, Count: int64(limit - len(found)),
		}).Result()
		if redis.HasErrorPrefix(err, "NOGROUP") {
			return nil, q.createGroup(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("claiming orders in the journal: %w", err)
		}
		found, start = append(found, page...), next
		if len(found) >= limit || next == "0-0" {
			break
		}
	}
	messages, err := q.messages(ctx, found)
	if err != nil {
		return nil, err
	}
	return q.takesOf(ctx, messages)
}

// messages reads the messages with these IDs. A message that is not in the stream any
// more has no values. XAUTOCLAIM could return messages too, but before Redis 7 its answer
// has a null for each that is gone, and the client then fails the whole answer.
func (q *QueuedOrders) messages(ctx context.Context, ids []string) ([]redis.XMessage, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	found := make([]*redis.XMessageSliceCmd, len(ids))
	_, err := q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, id := range ids {
			found[i] = p.XRange(ctx, q.journal, id, id)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading claimed messages of the journal: %w", err)
	}
	messages := make([]redis.XMessage, len(ids))
	for i, id := range ids {
		messages[i].ID = id
		for _, m := range found[i].Val() {
			messages[i] = m
		}
	}
	return messages, nil
}

// takesOf returns the takes of the orders that the messages name. It deletes
// messages whose orders are not queued any more.
func (q *QueuedOrders) takesOf(ctx context.Context, messages []redis.XMessage) ([]stock.Take, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	orders := make([]string, len(messages))
	for i, m := range messages {
		orders[i], _ = m.Values[orderField].(string)
	}
	texts, err := q.client.HMGet(ctx, q.queued, orders...).Result()
	if err != nil {
		return nil, fmt.Errorf("reading queued orders: %w", err)
	}
	takes := make([]stock.Take, 0, len(messages))
	var (
		errs     []error
		finished []string
	)
	for i, text := range texts {
		entry, ok := text.(string)
		if !ok {
			finished = append(finished, messages[i].ID)
			continue
		}
		t, err := parseEntry(orders[i], entry)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		takes = append(takes, t)
	}
	return takes, errors.Join(append(errs, q.forget(ctx, finished))...)
}

// forget deletes messages of the stream.
func (q *QueuedOrders) forget(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XAck(ctx, q.journal, consumers, ids...)
		p.XDel(ctx, q.journal, ids...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting finished orders from the journal: %w", err)
	}
	return nil
}

// Redeliver gives a new place to orders whose message is not in the stream: the stream
// or a part of it was deleted. It looks for them only if there are more orders than
// messages.
func (q *QueuedOrders) Redeliver(ctx context.Context) (orders int, err error) {
	size, err := q.measure(ctx)
	if err != nil {
		return 0, err
	}
	if size.messages >= size.orders {
		return 0, nil
	}
	for cursor := firstCursor; ; {
		reply, err := q.client.Eval(ctx, redeliverLua, []string{q.journal, q.queued}, cursor, scanRecords).StringSlice()
		if err == nil && len(reply) != 2 {
			err = errAnswer
		}
		if err != nil {
			return orders, fmt.Errorf("delivering lost orders again: %w", err)
		}
		n, _ := strconv.Atoi(reply[1])
		orders += n
		if cursor = reply[0]; cursor == firstCursor {
			return orders, nil
		}
	}
}

// Finish removes the orders of the takes. It changes no count and no record.
func (q *QueuedOrders) Finish(ctx context.Context, takes ...stock.Take) error {
	if len(takes) == 0 {
		return nil
	}
	args := make([]any, len(takes))
	for i, t := range takes {
		args[i] = string(appendID(appendID(make([]byte, 0, 72), t.OrderID), t.TakeID))
	}
	if err := q.client.Eval(ctx, finishLua, []string{q.journal, q.queued}, args...).Err(); err != nil {
		return fmt.Errorf("removing %d orders from the journal: %w", len(takes), err)
	}
	return nil
}

// Leave removes the consumer and idle ones.
func (q *QueuedOrders) Leave(ctx context.Context, consumer string) error {
	err := q.client.Eval(ctx, leaveLua, []string{q.journal}, consumer, maxConsumerIdle.Milliseconds()).Err()
	if err != nil {
		return fmt.Errorf("leaving the journal's consumer group: %w", err)
	}
	return nil
}

// Backlog returns the number of orders in the journal and the age of the oldest one. A
// message without an order, or an order without a message, counts too.
func (q *QueuedOrders) Backlog(ctx context.Context) (length int64, oldest time.Duration, err error) {
	size, err := q.measure(ctx)
	return max(size.orders, size.messages), size.oldest, err
}

// journalSize is the size of a journal at one moment.
type journalSize struct {
	orders, messages int64 // under the two keys
	oldest           time.Duration
}

func (q *QueuedOrders) measure(ctx context.Context) (size journalSize, err error) {
	pipe := q.client.TxPipeline()
	orders := pipe.HLen(ctx, q.queued)
	messages := pipe.XLen(ctx, q.journal)
	first := pipe.XRangeN(ctx, q.journal, "-", "+", 1)
	now := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return journalSize{}, fmt.Errorf("measuring the journal: %w", err)
	}
	size.orders, size.messages = orders.Val(), messages.Val()
	for _, m := range first.Val() {
		added, _, _ := strings.Cut(m.ID, "-")
		millis, err := strconv.ParseInt(added, 10, 64)
		if err != nil {
			return journalSize{}, fmt.Errorf("measuring the journal: message ID %q: %w", m.ID, err)
		}
		size.oldest = max(now.Val().Sub(time.UnixMilli(millis)), 0)
	}
	return size, nil
}
