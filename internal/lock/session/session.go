// Package session implements a lock backend on locks that belong to a session of a database server:
// GET_LOCK of MySQL and the advisory locks of PostgreSQL. Packages mysql and postgres supply the
// statements.
//
// Each holder has its own session, and so has the first waiter of each process. A waiter waits on
// the server, which grants a lock in the order of the requests. The server frees a lock when its
// session ends: when the connection is closed, or when the server has received no statement for the
// length of a lease.
//
// A holder checks its session every 250 ms. If the session has ended, because its connection was
// closed or an administrator has ended it, the lease is lost. If the server does not answer, the
// lease is lost after two thirds of its length, before the server can free the lock.
//
// The fencing token is the next value of a sequence. A sequence that is more than a second behind
// the server's clock in microseconds is raised to it first. A holder mints its token after the
// server has granted it the lock. A waiter sends both statements together.
package session

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

const (
	// MaxWait is how long one statement waits for a lock on the server. The waiter then asks again
	// and gets a new place; see errWaited. The wait is bounded because PostgreSQL cannot remove
	// dead rows that are younger than a waiting statement.
	MaxWait = 30 * time.Second

	// MaxBehind is how far in microseconds a token may be behind the server's clock. A sequence
	// that is further behind is raised to the clock first. So tokens rise even if the sequence is
	// new, was restored from a backup, or has lost its last values. MariaDB flushes a sequence to
	// the disk up to a second after a change. After a crash more time than MaxBehind passes,
	// because a server grants no lock within settleTime. A promoted standby grants at once, so the
	// failover must have taken longer than MaxBehind.
	MaxBehind = 1_000_000

	// maxSessions bounds the sessions of a Locker. Further requests wait for one.
	maxSessions = 32
	// checkInterval is the time between two checks of a held lock.
	checkInterval = 250 * time.Millisecond
	// answerTimeout bounds a statement, in addition to its wait for a lock. A check
	// ends with the lease.
	answerTimeout = 5 * time.Second
	// settleTime is how long a server grants no lock after its start. A restarted server has
	// forgotten its locks. The holders notice that within this time, unless the network cuts them
	// off.
	settleTime = 2 * time.Second
)

// Database has the statements and functions that differ between databases. A statement takes a
// lock's key, and returns one row: the ID of the server's session, and a boolean.
type Database struct {
	Try    string // takes the lock if it is free; true: the session has the lock
	Check  string // true: the session holds the lock
	Unlock string // frees the lock; true: the session held the lock

	// Key returns the key of a lock. Locks of different scopes do not exclude each other.
	Key func(scope, name string) any
	// Wait waits for the lock for MaxWait, and then mints its token, in one round trip.
	Wait func(ctx context.Context, conn *sql.Conn, key any) (Taken, error)
	// Mint returns the lock's next token.
	Mint func(ctx context.Context, conn *sql.Conn, key any) (token int64, err error)
	// IsTimeout reports whether err, which may be nil, means that MaxWait has passed.
	IsTimeout func(err error) bool
	// Prepare sets up a new connection. Its session must end when the server has received no
	// statement for the length of a lease. It returns lock.ErrNotMigrated if tokens cannot be
	// minted.
	Prepare func(ctx context.Context, conn *sql.Conn, lease time.Duration) (Server, error)
}

// Taken is the result of a wait for a lock.
type Taken struct {
	Session int64 // the ID of the server's session
	Granted bool
	Token   int64 // has no meaning if the lock is not granted
}

// Server has what a new connection knows about its server.
type Server struct {
	Session int64         // the ID of the connection's session
	Scope   string        // identifies the database within the server
	Uptime  time.Duration // time since the start of the server
}

// Locker locks in the sessions of a database server. Call Close when it is no longer
// used.
type Locker struct {
	lock.Locker
	backend *backend
}

// New returns a Locker on the pool, which must keep no idle connections. Close does not close the
// pool. Leases know their Connection if the pool calls Dialed. lease is how long a lock can outlive
// its holder; 0 means lock.DefaultLease. It is rounded up to whole seconds, and to at least two.
//
// New returns an error if the connections do not have their own sessions, for example behind a
// pooler that assigns a session to each transaction. It returns lock.ErrNotMigrated if the database
// was not migrated.
func New(ctx context.Context, pool *sql.DB, database Database, lease time.Duration) (*Locker, error) {
	lease = (cmp.Or(lease, lock.DefaultLease) + time.Second - 1).Truncate(time.Second)
	b := &backend{
		pool: pool, database: database, lease: max(lease, 2*time.Second),
		slots: make(chan struct{}, maxSessions),
	}
	if err := b.probe(ctx); err != nil {
		return nil, err
	}
	first, err := b.take(ctx)
	if err != nil {
		return nil, err
	}
	b.scope = first.server.Scope
	b.put(first)
	return &Locker{Locker: lock.New(b), backend: b}, nil
}

// Close ends the idle sessions. No caller may be waiting for a lock. Held leases stay
// valid until they are unlocked.
func (l *Locker) Close() error {
	b := l.backend
	b.mu.Lock()
	idle := b.idle
	b.idle, b.closed = nil, true
	b.mu.Unlock()
	for _, s := range idle {
		_ = s.conn.Close()
	}
	return nil
}

type backend struct {
	pool     *sql.DB
	database Database
	scope    string
	lease    time.Duration
	slots    chan struct{} // has an element for each session in use

	mu     sync.Mutex
	idle   []*session // idle sessions; the last one was used last
	closed bool
}

// session is a connection and its session of the server.
type session struct {
	conn   *sql.Conn
	socket net.Conn // the socket below conn; nil: the pool has not called Dialed
	server Server
	reused bool // the session has been idle before

	expiry *time.Timer // ends the idle session
}

// errStranded means that two statements of one connection reached different sessions.
var errStranded = errors.New("the connection has no session of its own, so the lock would be stranded; " +
	"connect to the database directly instead of through a pooler that assigns sessions to transactions")

// probe checks that two connections have two sessions, and that each connection keeps its session
// between two statements.
func (b *backend) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	one, err := b.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer one.Close()
	other, err := b.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer other.Close()

	key := b.database.Key("probe", uuid.NewString())
	session, held, err := ask(ctx, one, b.database.Try, key)
	if err != nil {
		return err
	}
	if _, err := other.ExecContext(ctx, "START TRANSACTION"); err != nil { // a pooler cannot give a session to other connections during a transaction
		return err
	}
	// Do not use a Tx: the Rollback of the MySQL driver can wait for its answer forever.
	defer func() { _, _ = other.ExecContext(ctx, "ROLLBACK") }()
	otherSession, heldTwice, err := ask(ctx, other, b.database.Try, key)
	if err != nil {
		return err
	}
	last, stillHeld, err := ask(ctx, one, b.database.Unlock, key)
	if err != nil {
		return err
	}
	if !held || heldTwice || !stillHeld || session == otherSession || session != last {
		return errStranded
	}
	return nil
}

// ask runs one of the database's statements.
func ask(ctx context.Context, on *sql.Conn, statement string, key any) (session int64, answer bool, err error) {
	err = on.QueryRowContext(ctx, statement, key).Scan(&session, &answer)
	return session, answer, err
}

// take returns an idle session, or a new one. It waits if all sessions are in use.
func (b *backend) take(ctx context.Context) (*session, error) {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for one of %d sessions: %w", maxSessions, ctx.Err())
	}
	if s := b.takeIdle(); s != nil {
		return s, nil
	}
	s, err := b.open(ctx)
	if err != nil {
		<-b.slots
		return nil, err
	}
	return s, nil
}

// takeIdle returns the session that was used last, or nil if there is none. The server may have
// ended it during a pause of the process; then Acquire takes another one.
func (b *backend) takeIdle() *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.idle) == 0 {
		return nil
	}
	last := len(b.idle) - 1
	s := b.idle[last]
	b.idle = b.idle[:last]
	s.expiry.Stop()
	return s
}

// open opens a session. If the server has just started, open waits.
func (b *backend) open(ctx context.Context) (_ *session, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTime+answerTimeout, errNoAnswer)
	defer cancel()
	s := new(session)
	if s.conn, err = b.pool.Conn(context.WithValue(ctx, dialingKey{}, s)); err != nil {
		return nil, because(ctx, err)
	}
	s.server, err = b.database.Prepare(ctx, s.conn, b.lease)
	if err == nil {
		err = retry.Sleep(ctx, settleTime-max(s.server.Uptime, 0)) // Uptime is negative if the server's clock was set back
	}
	if err != nil {
		_ = s.conn.Close()
		return nil, because(ctx, err)
	}
	return s, nil
}

// put keeps a session that holds no lock for later holders.
func (b *backend) put(s *session) {
	s.reused = true
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		b.discard(s)
		return
	}
	b.idle = append(b.idle, s)
	s.expiry = time.AfterFunc(b.lease/2, func() { b.expire(s) }) // the server ends the session after a lease
	b.mu.Unlock()
	<-b.slots
}

// expire ends the session if it is still idle.
func (b *backend) expire(s *session) {
	b.mu.Lock()
	i := slices.Index(b.idle, s)
	if i >= 0 {
		b.idle = slices.Delete(b.idle, i, i+1)
	}
	b.mu.Unlock()
	if i >= 0 {
		_ = s.conn.Close()
	}
}

// discard ends a session in use, and so frees the lock that it may hold.
func (b *backend) discard(s *session) {
	_ = s.conn.Close()
	<-b.slots
}

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func(error)) (lock.Grant, error) {
	for {
		s, err := b.take(ctx)
		if err != nil {
			return nil, err
		}
		g := &grant{backend: b, session: s, key: b.database.Key(b.scope, name)}
		switch err := g.acquire(ctx, wait); {
		case err == nil:
			g.startChecks(lost)
			return g, nil
		case errors.Is(err, lock.ErrHeld):
			b.put(s)
			return nil, err
		case errors.Is(err, errWaited):
			b.discard(s)
		default:
			// Try again if the session may have ended while it was idle, or has ended during the
			// wait. No lock was held then, so none is lost.
			again := s.reused || wait && !errors.Is(err, errNoAnswer) && s.hasEnded(ctx)
			b.discard(s) // when the session ends, the server ends the request
			if !again || ctx.Err() != nil {
				return nil, err
			}
		}
	}
}

// hasEnded reports whether either end has closed the connection. It returns false if the server
// only does not answer.
func (s *session) hasEnded(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return s.conn.PingContext(ctx) != nil && ctx.Err() == nil
}

// errWaited means that Wait failed because MaxWait has passed. The server may have granted
// the lock at that moment. A second request in the same session would then hold it twice,
// and Unlock would free it once. So the waiter asks again in another session.
var errWaited = errors.New("the wait for the lock has timed out")

// grant is a lock from its request to its release.
type grant struct {
	backend *backend
	session *session
	key     any
	token   int64

	mu    sync.Mutex
	until time.Time // the server keeps the session at least until then and for a third of a lease more
	keeps bool      // only Release may close the connection; see Connection

	checks      *time.Timer            // begins the checks
	begin       func(chan<- time.Time) // runs the checks; a Confirm or the timer requests the first one
	confirms    chan chan<- time.Time  // requests of Confirm for a check
	stop        chan struct{}          // closed by Release
	stopped     chan struct{}          // closed when the checks have ended
	lost        error                  // why the checks have ended; nil after Release
	cancelCheck context.CancelFunc
}

func (g *grant) Token() uint64 { return uint64(g.token) }

func (g *grant) Until() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until
}

// extend makes the lease valid for two thirds of its length after asked, the time at which an
// answered statement was sent.
func (g *grant) extend(asked time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = asked.Add(g.backend.lease * 2 / 3)
}

var errNoAnswer = errors.New("the database server does not answer")

// because returns the cause of ctx's end if ctx has ended, and err otherwise.
func because(ctx context.Context, err error) error { return cmp.Or(context.Cause(ctx), err) }

// ask runs a statement on the lock's key. The server must answer within the limit.
func (g *grant) ask(ctx context.Context, statement string, limit time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
	defer cancel()
	session, answer, err := ask(ctx, g.session.conn, statement, g.key)
	switch {
	case err != nil:
		return false, because(ctx, err)
	case session != g.session.server.Session:
		return false, errStranded
	}
	return answer, nil
}

// acquire takes the lock and mints its token.
func (g *grant) acquire(ctx context.Context, wait bool) error {
	if wait {
		return g.wait(ctx)
	}
	switch granted, err := g.ask(ctx, g.backend.database.Try, answerTimeout); {
	case err != nil:
		return err
	case !granted:
		return lock.ErrHeld
	}
	return g.mint(ctx)
}

// wait waits for the lock. After a long wait, it sends another statement, because the lease counts
// from a statement that was answered at once.
func (g *grant) wait(ctx context.Context) error {
	for {
		asked := time.Now()
		taken, err := g.askToWait(ctx)
		switch {
		case g.backend.database.IsTimeout(err):
			return errWaited
		case err != nil:
			return err
		case !taken.Granted:
			continue
		}
		g.token = taken.Token
		if time.Since(asked) <= checkInterval {
			g.extend(asked)
			return nil
		}
		asked = time.Now()
		held, err := g.ask(ctx, g.backend.database.Check, answerTimeout)
		if err == nil && !held {
			err = lock.ErrDeleted
		}
		if err == nil {
			g.extend(asked)
		}
		return err
	}
}

// askToWait waits for the lock once.
func (g *grant) askToWait(ctx context.Context) (Taken, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, MaxWait+answerTimeout, errNoAnswer)
	defer cancel()
	taken, err := g.backend.database.Wait(ctx, g.session.conn, g.key)
	if err == nil {
		err = ctx.Err() // a driver may end the session if ctx ends while the answer comes
	}
	switch {
	case err != nil:
		return Taken{}, because(ctx, err)
	case taken.Session != g.session.server.Session:
		return Taken{}, errStranded
	}
	return taken, nil
}

// mint mints the token of the lock that the session has.
func (g *grant) mint(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	asked := time.Now()
	token, err := g.backend.database.Mint(ctx, g.session.conn, g.key)
	if err == nil {
		err = ctx.Err() // a driver may end the session if ctx ends while the answer comes
	}
	if err != nil {
		return fmt.Errorf("minting a fencing token: %w", because(ctx, err))
	}
	g.token = token
	g.extend(asked)
	return nil
}

// startChecks checks the lock until Release, or until it is lost. A lock that is freed
// before the first check has no goroutine.
func (g *grant) startChecks(lost func(error)) {
	g.confirms, g.stop, g.stopped = make(chan chan<- time.Time), make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	g.cancelCheck = cancel
	g.begin = func(confirmed chan<- time.Time) {
		g.lost = g.check(ctx, confirmed)
		cancel()
		if g.lost != nil {
			lost(g.lost)
		}
		close(g.stopped)
		if g.lost != nil && !g.keepsConnection() {
			_ = g.session.conn.Close() // closing the connection frees the lock if the server still holds it
		}
	}
	g.checks = time.AfterFunc(checkInterval, func() { g.begin(nil) })
}

// check renews the lease until Release is called or the lock is lost. It returns why the lock was
// lost, or nil after Release. confirmed belongs to the Confirm that requested the first check. It
// is nil if the timer started it.
func (g *grant) check(ctx context.Context, confirmed chan<- time.Time) (lost error) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		if err := g.renew(ctx); err != nil {
			return err
		}
		if confirmed != nil {
			confirmed <- g.Until()
		}
		select {
		case <-g.stop:
			return nil
		case <-ticker.C:
			confirmed = nil
		case confirmed = <-g.confirms:
		}
	}
}

// renew checks that the session holds the lock, and renews the lease. The server counts
// the length of the lease from the last statement of the session.
func (g *grant) renew(ctx context.Context) error {
	until, asked := g.Until(), time.Now()
	held, err := g.ask(ctx, g.backend.database.Check, time.Until(until))
	switch {
	case !time.Now().Before(until):
		return lock.ErrExpired // return ErrExpired whatever the server answered, because the holder has seen the lease end
	case err != nil:
		return fmt.Errorf("%w: %w", lock.ErrDisconnected, err)
	case !held:
		return lock.ErrDeleted
	}
	g.extend(asked)
	return nil
}

func (g *grant) Release(ctx context.Context) error {
	close(g.stop)
	if g.checks.Stop() { // the checks have not begun
		g.cancelCheck()
		close(g.stopped)
	}
	select {
	case <-g.stopped:
	case <-ctx.Done():
		g.cancelCheck()
		<-g.stopped
	}
	if g.lost != nil {
		g.backend.discard(g.session)
		return g.lost
	}
	held, err := g.ask(ctx, g.backend.database.Unlock, answerTimeout)
	if err == nil && !held {
		err = lock.ErrDeleted
	}
	if err != nil {
		g.backend.discard(g.session)
		return err
	}
	g.backend.put(g.session)
	return nil
}
