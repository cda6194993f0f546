package stock

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Journal keeps the orders that are answered before the ledger has them. A gate
// that has a journal adds an order to it in the same step in which it cuts the
// units. The order stays there until the ledger has its final row, so that an order
// is always in the journal, in the ledger, or in both.
//
// Consumers on all instances read the journal. Each order is delivered to one of
// them, and again to another if the first does not finish it. So two consumers may
// work on one order. A consumer must give a take back only if the ledger can no
// longer commit it.
//
// Implementations are safe for concurrent use, also by several processes.
type Journal interface {
	QueuedOrders

	// Queue takes like Gate.Take, and adds the order to the journal in the same
	// step. at is the time at which the order is queued.
	//
	// It has the errors of Take. ErrInFlight: another take of the order is queued
	// or in flight. ErrBusy: also if the journal is full. With any other error
	// the order may be queued, and must not be given back.
	Queue(ctx context.Context, d Deduction, at time.Time) (Take, error)

	// Requeue takes the units of a queued order again under a new take ID, and
	// replaces t in the journal in the same step. The order keeps its place.
	//
	// It has the errors of Take. ErrInFlight: t is not in the journal any more.
	Requeue(ctx context.Context, t Take, takeID uuid.UUID) (Take, error)
}

// QueuedOrders is the part of a journal that needs no gate. So an instance of any
// strategy can find the orders that are queued in its Redis, and end them.
//
// Implementations are safe for concurrent use, also by several processes.
type QueuedOrders interface {
	// Open prepares the store to deliver orders to the consumer, and returns why it
	// cannot. ErrNoJournal: it never can.
	Open(ctx context.Context, consumer string) error

	// Queued returns the take of a queued order. ErrNotQueued: the order is not in
	// the journal.
	Queued(ctx context.Context, order uuid.UUID) (Take, error)

	// Read delivers up to limit new orders to the consumer. If there are none, it
	// waits for one, at most for wait. Beside an error, it returns what could be
	// read.
	Read(ctx context.Context, consumer string, limit int, wait time.Duration) ([]Take, error)

	// Claim delivers up to limit orders to the consumer that were delivered at
	// least idle ago and are not finished. Beside an error, it returns what could
	// be read.
	Claim(ctx context.Context, consumer string, limit int, idle time.Duration) ([]Take, error)

	// Redeliver gives orders a new place if the journal has lost theirs, so that they
	// are delivered again, and returns their number. It costs one read if no place is
	// lost.
	Redeliver(ctx context.Context) (orders int, err error)

	// Finish removes the orders of the takes. It leaves an order that was taken again
	// since. Finish of a Journal also settles the takes, in the same step.
	Finish(ctx context.Context, takes ...Take) error

	// Leave removes a consumer that has finished all its orders, and all others
	// that have not called for long.
	Leave(ctx context.Context, consumer string) error

	// Backlog returns the number of queued orders, and how long the oldest has
	// been queued.
	Backlog(ctx context.Context) (length int64, oldest time.Duration, err error)
}
