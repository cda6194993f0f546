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
	// maxQueued bounds the orders in the journal. Each needs about 500 bytes in Redis.
	maxQueued = 100_000
	// maxClaimPages bounds the pages of pending orders that one Claim reads.
	maxClaimPages = 100
	// maxConsumerIdle is how long a consumer without pending orders may be inactive before it is
	// removed.
	maxConsumerIdle = time.Minute
	// consumers is the journal's consumer group. settle.lua and leave.lua contain the name too.
	consumers = "instances"
	// orderField is the field of a stream entry that has the order's ID.
	orderField = "order"
)

var (
	// errQueueFull means that the journal is full.
	errQueueFull = errors.New("the journal is full")
	// errQueueClosed means that Redis has the mark of another generation, or none. A running
	// instance writes its mark about once a second, while it owns the stock.
	errQueueClosed = errors.New("the journal is closed to this generation")
)

// These scripts read and change no counts, so they need not belong to a generation.
var (
	//go:embed leave.lua
	leaveLua string
	//go:embed redeliver.lua
	redeliverLua string
)

// Journal keeps the orders that are answered before the ledger has them. Queue adds an order in the
// same step in which it cuts the units. An order stays in the journal until the ledger has its
// final row. So it is always in the journal, in the ledger, or in both.
//
// Consumers on all instances read the journal. Each order is delivered to one consumer, and later
// to another if the first does not finish it. So two consumers may work on one order. A consumer
// must give a take back only if the ledger can no longer commit it.
//
// An order can be queued only under the generation whose mark is in Redis. So once a later
// generation has been marked, an empty journal stays empty.
//
// A Journal is safe for concurrent use, also by several processes.
type Journal struct {
	gate            *Script
	client          redis.UniversalClient
	journal, queued string // keys
	limit           int    // maximum number of queued orders
}

// Journal returns the gate's journal, or nil on a cluster. There a count and the journal may be on
// different servers, which cannot change in one step.
func (g *Script) Journal() *Journal {
	c := g.counter
	if c.cluster {
		return nil
	}
	return &Journal{gate: g, client: c.client, journal: c.journalKey(), queued: c.queuedKey(), limit: maxQueued}
}

// journalEntry says how the order of a cut is added to the journal.
type journalEntry struct {
	previous uuid.UUID // the take to replace in the journal; uuid.Nil for a new order
	at       time.Time
	limit    int
}

func (c *Counter) journalKey() string { return c.ledgerPrefix + "}:journal" }

func (c *Counter) queuedKey() string { return c.ledgerPrefix + "}:queued" }

// Queue takes like Script.Take, and adds the order to the journal in the same step. at is the time
// at which the order is queued.
//
// It returns the errors of Take. ErrInFlight means that another take of the order is queued or in
// flight. ErrBusy may also mean that the journal is full, or closed to the generation in use. After
// any other error the order may be queued, and must not be given back.
func (j *Journal) Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error) {
	return j.take(ctx, d, journalEntry{at: at, limit: j.limit})
}

// Requeue takes the units of a queued order again under a new take ID, and replaces t in the
// journal in the same step. The order keeps its place.
//
// It returns the errors of Take. ErrInFlight means that t is no longer in the journal.
func (j *Journal) Requeue(ctx context.Context, t stock.Take, takeID uuid.UUID) (stock.Take, error) {
	d := t.Deduction
	d.TakeID = takeID
	return j.take(ctx, d, journalEntry{previous: t.TakeID, at: t.QueuedAt, limit: j.limit})
}

func (j *Journal) take(ctx context.Context, d stock.Deduction, entry journalEntry) (stock.Take, error) {
	if err := validate(d); err != nil {
		return stock.Take{}, err
	}
	receipt := make(stock.Receipt, len(d.Lines))
	if err := j.gate.cut(ctx, &cut{d: d, lines: d.Lines, journal: &entry, receipt: receipt}); err != nil {
		return stock.Take{}, err
	}
	return stock.Take{Deduction: d, Receipt: receipt, QueuedAt: entry.at}, nil
}

// Finish settles the takes and removes their orders from the journal. It leaves orders that were
// taken again since. If it fails, it may have finished some of the takes. Finishing a take again
// does no harm.
func (j *Journal) Finish(ctx context.Context, takes ...stock.Take) error {
	return j.gate.counter.settle(ctx, []string{j.journal, j.queued}, takes)
}

// Queued returns the take of a queued order. ok is false if the order is not in the
// journal.
func (j *Journal) Queued(ctx context.Context, order uuid.UUID) (t stock.Take, ok bool, err error) {
	text, err := j.client.HGet(ctx, j.queued, order.String()).Result()
	if errors.Is(err, redis.Nil) {
		return stock.Take{}, false, nil
	}
	if err != nil {
		return stock.Take{}, false, fmt.Errorf("looking for order %s in the journal: %w", order, err)
	}
	t, err = parseEntry(order.String(), text)
	return t, err == nil, err
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

// Open prepares Redis to deliver orders to the consumer. It creates the consumer group. It returns
// an error if the server lacks XAUTOCLAIM, the newest command that the journal needs (Redis 6.2).
// It also returns one if the user may not use a command that a script calls after it has changed
// counts.
func (j *Journal) Open(ctx context.Context, consumer string) error {
	if err := j.createGroup(ctx); err != nil {
		return err
	}
	const none = ":none" // no such stream exists, so these commands change nothing
	_, err := j.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XAutoClaim(ctx, &redis.XAutoClaimArgs{
			Stream: j.journal, Group: consumers, Consumer: consumer, MinIdle: math.MaxInt64, Start: "0-0", Count: 1,
		})
		p.XAck(ctx, j.journal+none, consumers, "0-0")
		p.XDel(ctx, j.journal+none, "0-0")
		p.XAdd(ctx, &redis.XAddArgs{Stream: j.journal + none, NoMkStream: true, Values: []string{orderField, ""}})
		return nil
	})
	if redis.HasErrorPrefix(err, "unknown command") {
		return fmt.Errorf("opening the journal: Redis 6.2 or later is needed: %w", err)
	}
	if err != nil && !errors.Is(err, redis.Nil) { // XADD answers nil
		return fmt.Errorf("opening the journal: %w", err)
	}
	return nil
}

// Read delivers up to limit new orders to the consumer. If there are none, it waits for one, at
// most for wait. If it fails, it returns an error and the orders that it could read.
func (j *Journal) Read(ctx context.Context, consumer string, limit int, wait time.Duration) ([]stock.Take, error) {
	// Without the bound, a frozen server would block the call for longer.
	ctx, cancel := context.WithTimeout(ctx, max(wait, 0)+callTimeout)
	defer cancel()
	streams, err := j.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: consumers, Consumer: consumer, Streams: []string{j.journal, ">"},
		Count: int64(limit), Block: wait,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case redis.HasErrorPrefix(err, "NOGROUP"):
		return nil, j.createGroup(ctx)
	case err != nil:
		return nil, fmt.Errorf("reading the journal: %w", err)
	case len(streams) == 0:
		return nil, nil
	}
	return j.takesOf(ctx, streams[0].Messages)
}

// createGroup creates the consumer group. The group delivers all orders in the journal again, even
// those that a lost group had delivered.
func (j *Journal) createGroup(ctx context.Context) error {
	err := j.client.XGroupCreateMkStream(ctx, j.journal, consumers, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") { // another instance has created the group
		return fmt.Errorf("creating the journal's consumer group: %w", err)
	}
	return nil
}

// Claim delivers to the consumer at most limit unfinished orders whose last delivery was at least
// idle ago. If it fails, it returns an error and the orders that it could read.
func (j *Journal) Claim(ctx context.Context, consumer string, limit int, idle time.Duration) ([]stock.Take, error) {
	var found []string // IDs of messages
	start := "0-0"
	for range maxClaimPages {
		page, next, err := j.client.XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{
			Stream: j.journal, Group: consumers, Consumer: consumer,
			MinIdle: idle, Start: start, Count: int64(limit - len(found)),
		}).Result()
		if redis.HasErrorPrefix(err, "NOGROUP") {
			return nil, j.createGroup(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("claiming orders in the journal: %w", err)
		}
		found, start = append(found, page...), next
		if len(found) >= limit || next == "0-0" {
			break
		}
	}
	messages, err := j.messages(ctx, found)
	if err != nil {
		return nil, err
	}
	return j.takesOf(ctx, messages)
}

// messages reads the messages with these IDs. A message that was deleted has no values. XAUTOCLAIM
// could return messages too. But before Redis 7 its answer has a null for each deleted message, and
// the client then fails the whole answer.
func (j *Journal) messages(ctx context.Context, ids []string) ([]redis.XMessage, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	found := make([]*redis.XMessageSliceCmd, len(ids))
	_, err := j.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, id := range ids {
			found[i] = p.XRange(ctx, j.journal, id, id)
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

// takesOf returns the takes of the orders that the messages name. It deletes messages whose orders
// are no longer queued.
func (j *Journal) takesOf(ctx context.Context, messages []redis.XMessage) ([]stock.Take, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	orders := make([]string, len(messages))
	for i, m := range messages {
		orders[i], _ = m.Values[orderField].(string)
	}
	texts, err := j.client.HMGet(ctx, j.queued, orders...).Result()
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
	return takes, errors.Join(append(errs, j.forget(ctx, finished))...)
}

// forget deletes messages of the stream. If the connection breaks in between, they are still
// pending. If they were only acknowledged, they would never be delivered again, and a drain would
// wait for them forever.
func (j *Journal) forget(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := j.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XDel(ctx, j.journal, ids...)
		p.XAck(ctx, j.journal, consumers, ids...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting finished orders from the journal: %w", err)
	}
	return nil
}

// Redeliver adds a message for each queued order that has none in the stream, because the stream or
// a part of it was deleted. These orders are then delivered again. It returns their number. It
// searches for them only if there are more orders than messages.
func (j *Journal) Redeliver(ctx context.Context) (orders int, err error) {
	size, err := j.measure(ctx)
	if err != nil {
		return 0, err
	}
	if size.messages >= size.orders {
		return 0, nil
	}
	for cursor := firstCursor; ; {
		reply, err := j.client.Eval(ctx, redeliverLua, []string{j.journal, j.queued}, cursor, scanRecords).StringSlice()
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

// Leave removes a consumer that has finished all its orders, and all others that have been inactive
// for a long time.
func (j *Journal) Leave(ctx context.Context, consumer string) error {
	err := j.client.Eval(ctx, leaveLua, []string{j.journal}, consumer, maxConsumerIdle.Milliseconds()).Err()
	if err != nil {
		return fmt.Errorf("leaving the journal's consumer group: %w", err)
	}
	return nil
}

// Backlog returns the number of orders in the journal and the age of the oldest one. A
// message without an order, or an order without a message, counts too.
func (j *Journal) Backlog(ctx context.Context) (length int64, oldest time.Duration, err error) {
	size, err := j.measure(ctx)
	return max(size.orders, size.messages), size.oldest, err
}

// journalSize is the size of a journal at one time.
type journalSize struct {
	orders, messages int64 // numbers under the two keys
	oldest           time.Duration
}

func (j *Journal) measure(ctx context.Context) (size journalSize, err error) {
	pipe := j.client.TxPipeline()
	orders := pipe.HLen(ctx, j.queued)
	messages := pipe.XLen(ctx, j.journal)
	first := pipe.XRangeN(ctx, j.journal, "-", "+", 1)
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
