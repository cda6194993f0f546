package order

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
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

// wire is a connection to a database server through which a COMMIT may be lost
// on its way there, or its answer on its way back.
type wire struct {
	listener net.Listener
	server   string
	all      sync.WaitGroup
	over     chan struct{} // closed when the test is

	mu    sync.Mutex
	fault *commitFault // for the next COMMIT
	conns map[net.Conn]bool
}

// commitFault is what becomes of one COMMIT.
type commitFault struct {
	caught  chan struct{} // closed when the COMMIT has come by
	deliver chan bool     // hand it to the server, or hang up
}

// newWire listens for the database of dbURL, and returns the URL to use.
func newWire(t *testing.T, dbURL string) (*wire, string) {
	t.Helper()
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{server: u.Host, over: make(chan struct{}), conns: make(map[net.Conn]bool)}
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

// catch arms a fault for the next COMMIT.
func (w *wire) catch() *commitFault {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = &commitFault{make(chan struct{}), make(chan bool, 1)}
	return w.fault
}

// take returns the fault if the bytes are a COMMIT.
func (w *wire) take(sent []byte) *commitFault {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil || !bytes.Contains(bytes.ToUpper(sent), []byte("COMMIT")) {
		return nil
	}
	fault := w.fault
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
	back := make(chan struct{})
	w.all.Go(func() {
		defer close(back)
		_, _ = io.Copy(client, server)
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if fault := w.take(buffer[:n]); fault != nil {
			client.Close() // its answer cannot arrive
			close(fault.caught)
			select {
			case deliver := <-fault.deliver:
				if !deliver {
					return
				}
				if _, err := server.Write(buffer[:n]); err == nil {
					<-back // the server has answered, and nobody was there
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
// land, nobody decides that it did not.
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
						refuse(t, i, ask(sku), stock.ErrSoldOut)
						s.settled(t, i.gate, sku)
						s.atRest(t, i.gate, sku, 1)
					})

					t.Run("never lands", func(t *testing.T) {
						lay(t, i, sku, 2)
						fault := w.catch()
						heard := place(t.Context(), i, ask(sku).keyed("never"+name))
						wait(t, "the COMMIT", fault.caught)
						eventually(t, "the void order waits for the open transaction", func() bool { return s.waiting(t) > 0 })
						fault.deliver <- false
						if r := wait(t, "the answer", heard); !errors.Is(r.err, ErrBusy) {
							t.Errorf("heard %+v, want busy: nothing was cut", r)
						}
						s.settled(t, i.gate, sku)
						s.atRest(t, i.gate, sku, 1)
						mustPlace(t, i, ask(sku).keyed("never"+name))
						s.settled(t, i.gate, sku)
						s.atRest(t, i.gate, sku, 2)
					})
					i.Close()
				})
			}
		})
	}
}
