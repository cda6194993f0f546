package gate

import (
	"context"
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
	// maxQueued bounds the orders in the journal. Each needs some 500 bytes of
	// Redis's memory.
	maxQueued = 100_000
	// maxClaimPages bounds the pages of pending orders that one Claim looks
	// through.
	maxClaimPages = 100
	// maxConsumerIdle is how long a consumer without pending orders may not call
	// before it is removed.
	maxConsumerIdle = time.Minute
	// consumers is the journal's consumer group. settle.lua and leave.lua have the
	// name too.
	consumers = "instances"
	// orderField is the field of a stream entry that has the order's ID.
	orderField = "order"
)

// errQueueFull says that the journal has as many orders as it may have.
var errQueueFull = errors.New("the journal is full")

// Journal is the stock.Journal of a Script whose counts are on one server.
type Journal struct {
	gate  *Script
	limit int // of queued orders
}

var _ stock.Journal = (*Journal)(nil)

// Journal returns the gate's journal, or nil on a cluster: there a count and the
// journal may be on different servers, and cannot change in one step.
func (g *Script) Journal() *Journal {
	if g.cluster {
		return nil
	}
	return &Journal{gate: g, limit: maxQueued}
}

// queueing says how a cut's order is queued.
type queueing struct {
	previous uuid.UUID // the take that is replaced in the journal; uuid.Nil for a new order
	at       time.Time
	limit    int
}

func (c *counts) journalKey() string { return c.ledgerPrefix + "}:journal" }

func (c *counts) queuedKey() string { return c.ledgerPrefix + "}:queued" }

// Queue takes d and queues its order.
func (j *Journal) Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error) {
	return j.take(ctx, d, queueing{at: at, limit: j.limit})
}

// Requeue takes the units of t's order again and replaces t.
func (j *Journal) Requeue(ctx context.Context, t stock.Take, takeID uuid.UUID) (stock.Take, error) {
	d := t.Deduction
	d.TakeID = takeID
	return j.take(ctx, d, queueing{previous: t.TakeID, at: t.QueuedAt, limit: j.limit})
}

func (j *Journal) take(ctx context.Context, d stock.Deduction, q queueing) (stock.Take, error) {
	if err := validate(d); err != nil {
		return stock.Take{}, err
	}
	receipt := make(stock.Receipt, len(d.Lines))
	if err := j.gate.cut(ctx, &cut{d: d, lines: d.Lines, queue: &q, receipt: receipt}); err != nil {
		return stock.Take{}, err
	}
	return stock.Take{Deduction: d, Receipt: receipt, QueuedAt: q.at}, nil
}

// Queued returns the take of a queued order.
func (j *Journal) Queued(ctx context.Context, order uuid.UUID) (stock.Take, error) {
	text, err := j.gate.client.HGet(ctx, j.gate.queuedKey(), order.String()).Result()
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
	if len(fields) != 6 {
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
func (j *Journal) Open(ctx context.Context, consumer string) error {
	if err := j.createGroup(ctx); err != nil {
		return err
	}
	_, _, err := j.gate.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: j.gate.journalKey(), Group: consumers, Consumer: consumer, MinIdle: math.MaxInt64, Start: "0-0", Count: 1,
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
func (j *Journal) Read(ctx context.Context, consumer string, limit int, wait time.Duration) ([]stock.Take, error) {
	ctx, cancel := context.WithTimeout(ctx, max(wait, 0)+callTimeout) // otherwise a frozen server keeps the call for longer
	defer cancel()
	streams, err := j.gate.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: consumers, Consumer: consumer, Streams: []string{j.gate.journalKey(), ">"},
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

// createGroup creates the consumer group. It delivers all orders in the journal
// again, those too that a lost group had delivered.
func (j *Journal) createGroup(ctx context.Context) error {
	err := j.gate.client.XGroupCreateMkStream(ctx, j.gate.journalKey(), consumers, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") { // another instance created it
		return fmt.Errorf("creating the journal's consumer group: %w", err)
	}
	return nil
}

// Claim delivers orders to the consumer that others have not finished.
func (j *Journal) Claim(ctx context.Context, consumer string, limit int, idle time.Duration) ([]stock.Take, error) {
	var found []redis.XMessage
	start := "0-0"
	for range maxClaimPages {
		page, next, err := j.gate.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
			Stream: j.gate.journalKey(), Group: consumers, Consumer: consumer,
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
	return j.takesOf(ctx, found)
}

// takesOf returns the takes of the orders that the messages name. It deletes
// messages whose orders are not queued any more.
func (j *Journal) takesOf(ctx context.Context, messages []redis.XMessage) ([]stock.Take, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	orders := make([]string, len(messages))
	for i, m := range messages {
		orders[i], _ = m.Values[orderField].(string)
	}
	texts, err := j.gate.client.HMGet(ctx, j.gate.queuedKey(), orders...).Result()
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

// forget deletes messages of the stream.
func (j *Journal) forget(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := j.gate.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XAck(ctx, j.gate.journalKey(), consumers, ids...)
		p.XDel(ctx, j.gate.journalKey(), ids...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting finished orders from the journal: %w", err)
	}
	return nil
}

// Finish settles the takes and removes their orders from the journal. If it fails,
// it may have finished some of them. Finishing a take again does no harm.
func (j *Journal) Finish(ctx context.Context, takes ...stock.Take) error {
	if len(takes) == 0 {
		return nil
	}
	return j.gate.settle(ctx, []string{j.gate.journalKey(), j.gate.queuedKey()}, takes)
}

// Leave removes the consumer and idle ones.
func (j *Journal) Leave(ctx context.Context, consumer string) error {
	leave := newCall(&j.gate.scripts().leave, []string{j.gate.journalKey()},
		[]string{consumer, strconv.FormatInt(maxConsumerIdle.Milliseconds(), 10)})
	if err := j.gate.run(ctx, leave); err != nil {
		return fmt.Errorf("leaving the journal's consumer group: %w", err)
	}
	return nil
}

// Backlog returns the length of the journal and the age of its oldest order.
func (j *Journal) Backlog(ctx context.Context) (length int64, oldest time.Duration, err error) {
	pipe := j.gate.client.Pipeline()
	all := pipe.XLen(ctx, j.gate.journalKey())
	first := pipe.XRangeN(ctx, j.gate.journalKey(), "-", "+", 1)
	now := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, 0, fmt.Errorf("measuring the journal: %w", err)
	}
	for _, m := range first.Val() {
		added, _, _ := strings.Cut(m.ID, "-")
		millis, err := strconv.ParseInt(added, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("measuring the journal: message ID %q: %w", m.ID, err)
		}
		oldest = max(now.Val().Sub(time.UnixMilli(millis)), 0)
	}
	return all.Val(), oldest, nil
}
