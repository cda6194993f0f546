package order

import (
	"bytes"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waiting is how many sessions wait for a lock in the database server.
func (s *shop) waiting(t *testing.T) (n int) {
	t.Helper()
	query := "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
	if s.sql.Dialect() == "mysql" {
		// Its table of lock waits is a snapshot that frequent readers keep from
		// being renewed; here nothing but a lock makes a statement take so long.
		query = `SELECT count(*) FROM information_schema.processlist
			WHERE db = database() AND id <> connection_id() AND command IN ('Query', 'Execute') AND time_ms > 50`
	}
	if err := s.sql.DB().Raw(query).Row().Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// wire is a connection to a database server through which a COMMIT, and what
// travels with it, may be lost on its way there, or its answer on its way back.
type wire struct {
	listener net.Listener
	server   string
	farewell []byte // after which the server hangs up, when it has done what came before
	all      sync.WaitGroup
	over     chan struct{} // closed when the test is

	mu    sync.Mutex
	fault *commitFault // for the next COMMIT
	conns map[net.Conn]bool
}

// commitFault is what becomes of one COMMIT.
type commitFault struct {
	unheard bool          // it is handed to the server at once, and the answer lost
	caught  chan struct{} // closed when the COMMIT has come by
	whole   bool          // the transaction came with it; to be read after caught
	deliver chan bool     // hand it to the server, or hang up
	done    chan struct{} // closed when the server has answered, and hung up
}

// newWire listens for the database of dbURL, and returns the URL to use.
func newWire(t *testing.T, dbURL string) (*wire, string) {
	t.Helper()
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	farewell := []byte{'X', 0, 0, 0, 4} // PostgreSQL: Terminate
	if u.Scheme == "mysql" {
		farewell = []byte{1, 0, 0, 0, 1} // COM_QUIT
	}
	w := &wire{server: u.Host, farewell: farewell, over: make(chan struct{}), conns: make(map[net.Conn]bool)}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.all.Go(func() {
		for {
			client, err := w.listener.Accept()
			if err != nil {
				return
			}
			w.all.Go(func() { w.carry(client) })
		}
	})
	t.Cleanup(func() {
		close(w.over)
		w.listener.Close()
		w.mu.Lock()
		for c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.all.Wait()
	})
	u.Host = w.listener.Addr().String()
	return w, u.String()
}

// catch arms a fault for the next COMMIT: nobody hears what became of it.
func (w *wire) catch() *commitFault { return w.arm(&commitFault{}) }

// lose arms a fault for the answer to the next COMMIT.
func (w *wire) lose() *commitFault { return w.arm(&commitFault{unheard: true}) }

func (w *wire) arm(fault *commitFault) *commitFault {
	w.mu.Lock()
	defer w.mu.Unlock()
	fault.caught, fault.deliver, fault.done = make(chan struct{}), make(chan bool, 1), make(chan struct{})
	w.fault = fault
	return fault
}

// take returns the fault if the bytes are a COMMIT.
func (w *wire) take(sent []byte) *commitFault {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil || !bytes.Contains(bytes.ToUpper(sent), []byte("COMMIT")) {
		return nil
	}
	fault := w.fault
	fault.whole = bytes.Contains(sent, []byte("INSERT"))
	w.fault = nil
	return fault
}

func (w *wire) keep(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
}

func (w *wire) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close()
	w.keep(client)
	w.keep(server)
	var (
		back  = make(chan struct{})
		heard atomic.Bool // the client hears answers
	)
	heard.Store(true)
	w.all.Go(func() {
		defer close(back)
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			if heard.Load() {
				if _, err := client.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if fault := w.take(buffer[:n]); fault != nil {
			heard.Store(false)
			if fault.unheard {
				fault.deliver <- true
			} else {
				client.Close()
			}
			close(fault.caught)
			select {
			case deliver := <-fault.deliver:
				if !deliver {
					return
				}
				if _, err := server.Write(append(buffer[:n], w.farewell...)); err == nil {
					<-back
					close(fault.done)
				}
			case <-w.over:
			}
			return
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestCommitInLimbo: a COMMIT was sent and its answer lost. While it may still
// land, nobody decides that it did not: whoever wants to know waits for the
// open transaction, or bars its way.
func TestCommitInLimbo(t *testing.T) {
	t.Parallel()
	for _, d := range servers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			dbURL := d.url(t)
			s := newShop(t, dbURL)
			w, wireURL := newWire(t, dbURL)
			for _, name := range []string{"lua", "merged", "for-update"} {
				t.Run(name, func(t *testing.T) {
					// The other instance reads and voids on connections that work.
					i := s.open(t, settings{strategy: name, noGuard: true, sql: openSQL(t, wireURL)})
					sku := fresh("limbo")
					lay(t, i, sku, 1)

					t.Run("lands late", func(t *testing.T) {
						fault := w.catch()
						heard := place(t.Context(), i, ask(sku).keyed("late"+name))
						wait(t, "the COMMIT", fault.caught)
						if fault.whole {
							if r := wait(t, "the answer", heard); !errors.Is(r.err, ErrBusy) {
								t.Errorf("heard %+v, want busy: the void order was first", r)
							}
							fault.deliver <- true
							wait(t, "the server", fault.done)
							s.settled(t, i.gate, sku)
							s.atRest(t, i.gate, sku, 0)
							return
						}
						decided := false
						eventually(t, "the void order waits for the open transaction, or somebody decides", func() bool {
							select {
							case r := <-heard:
								t.Errorf("decided %+v while the transaction was open", r)
								decided = true
							default:
							}
							return decided || s.waiting(t) > 0
						})
						fault.deliver <- true
						if decided {
							return
						}
						if r := wait(t, "the answer", heard); r.err != nil {
							t.Errorf("the COMMIT landed, and the buyer heard %v", r.err)
						}
						mustRefuse(t, i, ask(sku), stock.ErrSoldOut)
						s.settled(t, i.gate, sku)
						s.atRest(t, i.gate, sku, 1)
					})

					t.Run("lands unheard", func(t *testing.T) {
						sku := fresh("limbo")
						lay(t, i, sku, 1)
						fault := w.lose()
						r := wait(t, "the answer", place(t.Context(), i, ask(sku).keyed("unheard"+name)))
						if wait(t, "the COMMIT", fault.caught); r.err != nil {
							t.Errorf("the COMMIT landed, and the buyer heard %v", r.err)
						}
						mustRefuse(t, i, ask(sku), stock.ErrSoldOut)
						s.settled(t, i.gate, sku)
						s.atRest(t, i.gate, sku, 1)
					})

					t.Run("never lands", func(t *testing.T) {
						sku := fresh("limbo")
						lay(t, i, sku, 1)
						fault := w.catch()
						heard := place(t.Context(), i, ask(sku).keyed("never"+name))
						wait(t, "the COMMIT", fault.caught)
						if !fault.whole {
							eventually(t, "the void order waits for the open transaction", func() bool { return s.waiting(t) > 0 })
						}
						fault.deliver <- false
						if r := wait(t, "the answer", heard); !errors.Is(r.err, ErrBusy) {
							t.Errorf("heard %+v, want busy: nothing was cut", r)
						}
						s.settled(t, i.gate, sku)
						s.atRest(t, i.gate, sku, 0)
						mustPlace(t, i, ask(sku).keyed("never"+name))
						s.settled(t, i.gate, sku)
						s.atRest(t, i.gate, sku, 1)
					})
					i.Close()
				})
			}
		})
	}
}

// TestTransactionInLimbo: a whole transaction was sent, the connection broke,
// and the server is in the middle of it. Nobody decides before it ends.
func TestTransactionInLimbo(t *testing.T) {
	t.Parallel()
	dbURL := testenv.MariaDB(t) // the others are sent the COMMIT alone
	s := newShop(t, dbURL)
	// The lines come after the orders and before the COMMIT.
	err := s.sql.DB().Exec(`CREATE TRIGGER hold BEFORE INSERT ON order_lines FOR EACH ROW
		BEGIN DO GET_LOCK(NEW.sku, 20); DO RELEASE_LOCK(NEW.sku); END`).Error
	if err != nil {
		t.Fatal(err)
	}
	w, wireURL := newWire(t, dbURL)
	i := s.open(t, settings{strategy: "lua", sql: openSQL(t, wireURL)})
	defer i.Close()
	sku := fresh("limbo")
	lay(t, i, sku, 1)

	pool, err := s.sql.DB().DB()
	if err != nil {
		t.Fatal(err)
	}
	holder, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := holder.ExecContext(t.Context(), "DO GET_LOCK(?, 1)", string(sku)); err != nil {
		t.Fatal(err)
	}
	fault := w.catch()
	heard := place(t.Context(), i, ask(sku).keyed("open"))
	fault.deliver <- true
	wait(t, "the transaction", fault.caught)
	if !fault.whole {
		t.Fatal("the COMMIT came alone")
	}
	eventually(t, "the void order waits for the transaction", func() bool { return s.waiting(t) > 1 })
	select {
	case r := <-heard:
		t.Fatalf("decided %+v while the transaction was open", r)
	default:
	}
	if _, err := holder.ExecContext(t.Context(), "DO RELEASE_LOCK(?)", string(sku)); err != nil {
		t.Fatal(err)
	}
	// A server may notice that nobody listens, and roll back.
	sold := int64(1)
	switch r := wait(t, "the answer", heard); {
	case errors.Is(r.err, ErrBusy):
		sold = 0
	case r.err != nil:
		t.Errorf("heard %v", r.err)
	}
	s.settled(t, i.gate, sku)
	s.atRest(t, i.gate, sku, sold)
}
