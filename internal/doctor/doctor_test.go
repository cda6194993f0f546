package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestJudgeCertificate checks which certificates clients refuse.
func TestJudgeCertificate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	good := func() *x509.Certificate {
		return &x509.Certificate{DNSNames: []string{"shop.test"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	}
	for _, test := range []struct {
		name   string
		change func(c *x509.Certificate)
		level  store.Level
		says   string
	}{
		{"good", func(*x509.Certificate) {}, store.OK, "shop.test"},
		{"for an address", func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, []net.IP{{10, 0, 0, 1}} }, store.OK, "10.0.0.1"},
		{"for servers and clients", func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		}, store.OK, "valid until"},
		{"expired", func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }, store.Problem, "expired at"},
		{"of tomorrow", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(24*time.Hour), now.Add(48*time.Hour) }, store.Problem, "not valid before"},
		{"about to expire", func(c *x509.Certificate) { c.NotBefore = now.Add(-20 * time.Hour) }, store.Warning, "in 1h0m0s"},
		{"without names", func(c *x509.Certificate) { c.DNSNames = nil }, store.Problem, "names no host"},
		{"for clients", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, store.Problem, "not for servers"},
	} {
		c := good()
		test.change(c)
		if found := judgeCertificate(c, now); len(found) != 1 || found[0].Level != test.level || !strings.Contains(found[0].Detail, test.says) {
			t.Errorf("%s: %+v", test.name, found)
		}
	}
}

// TestCompareClock checks from which difference a clock is reported.
func TestCompareClock(t *testing.T) {
	t.Parallel()
	for ahead, says := range map[time.Duration]string{
		0: "agrees", maxOffset: "agrees", -maxOffset: "agrees", 1500 * time.Millisecond: "is 1.5s ahead", -time.Hour: "is 1h0m0s behind",
	} {
		if f := compareClock(store.Offset{Server: "Redis", Ahead: ahead})[0]; !strings.Contains(f.Detail, says) || (f.Level == store.OK) != (says == "agrees") {
			t.Errorf("%v: %+v", ahead, f)
		}
	}
}

// TestTogether checks that a check that does not return is a problem, and does not hide what the others
// have found.
func TestTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		checks := []check{{"stuck", func(context.Context) store.Findings {
			<-release
			return nil
		}}}
		want := []store.Level{store.Problem}
		for range 20 {
			checks = append(checks, check{"quick", func(context.Context) (found store.Findings) {
				found.OK("fine")
				return found
			}})
			want = append(want, store.OK)
		}
		var e examination
		e.together(t.Context(), checks...)
		var levels []store.Level
		for _, one := range e.results {
			levels = append(levels, one.Level)
		}
		if !slices.Equal(levels, want) || e.isOK("stuck") || !e.isOK("quick") {
			t.Errorf("found %+v", e.results)
		}
		if err := e.print(false, io.Discard); err == nil {
			t.Error("there is no problem")
		}
	})
}

// frozen is a Redis whose client does not close.
type frozen struct {
	redis.UniversalClient
	release chan struct{}
}

func (f frozen) Close() error {
	<-f.release
	return nil
}

// TestClose_Frozen checks that the doctor does not wait for a server that is frozen.
func TestClose_Frozen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := frozen{release: make(chan struct{})}
		defer close(f.release)
		e := &examination{redis: f}
		e.close()
	})
}

// TestAsk checks that an instance is found on an address, also one that serves TLS.
func TestAsk(t *testing.T) {
	t.Parallel()
	instance := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"running":"lua"}`)
	})
	plain, secure := httptest.NewServer(instance), httptest.NewTLSServer(instance)
	defer plain.Close()
	defer secure.Close()
	for overTLS, server := range map[bool]*httptest.Server{false: plain, true: secure} {
		d := listenAddress{"--listen", server.Listener.Addr().String(), "/strategies", fromStrategies}
		if runs, ok := d.ask(t.Context(), overTLS); runs != "lua" || !ok {
			t.Errorf("over TLS %v: %q, %v", overTLS, runs, ok)
		}
	}
}

// TestJudge checks what is said about the owner of the stock.
func TestJudge(t *testing.T) {
	t.Parallel()
	owned := reconcile.Ownership{Layout: "lua", Owner: ledger.Owner{Generation: 3, Layout: "lua"}, Loaded: true}
	for name, test := range map[string]struct {
		change func(o *reconcile.Ownership)
		level  store.Level
		says   string
	}{
		"as it should be": {func(*reconcile.Ownership) {}, store.OK, "generation 3"},
		"nobody's":        {func(o *reconcile.Ownership) { o.Owner = ledger.Owner{}; o.Loaded = false }, store.OK, "no instance holds the stock"},
		"restored":        {func(o *reconcile.Ownership) { o.Restored = true }, store.Warning, "restored from a backup"},
		"queued orders":   {func(o *reconcile.Ownership) { o.Owner.Queues, o.Owner.Layout = true, "async" }, store.Problem, "queued orders"},
		"another layout":  {func(o *reconcile.Ownership) { o.Owner.Layout = "merged" }, store.Warning, `theirs are for "merged"`},
		"lost":            {func(o *reconcile.Ownership) { o.Loaded = false }, store.Warning, "has lost generation 3"},
	} {
		o := owned
		test.change(&o)
		found := judge(uuid.New(), o)
		if len(found) != 1 || found[0].Level != test.level || !strings.Contains(found[0].Detail, test.says) {
			t.Errorf("%s: found %+v", name, found)
		}
	}
}

// TestCheckFlags_DrainDelay checks that an instance that other machines can reach should have a drain
// delay.
func TestCheckFlags_DrainDelay(t *testing.T) {
	t.Parallel()
	strategy, _ := assembly.FindStrategy("merged")
	for _, test := range []struct {
		public bool
		delay  time.Duration
		warns  bool
	}{{true, 0, true}, {true, time.Second, false}, {false, 0, false}} {
		e := examination{o: Options{Parts: assembly.Parts{Strategy: strategy}, Public: test.public, DrainDelay: test.delay}}
		found := e.checkFlags(t.Context())
		if warns := slices.ContainsFunc(found, func(f store.Finding) bool { return strings.Contains(f.Detail, "--drain-delay is 0") }); warns != test.warns {
			t.Errorf("%+v: found %+v", test, found)
		}
	}
}

// TestUnreadable checks that each check reports a store that can no longer be read.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	sql, err := store.OpenSQL(t.Context(), testenv.SQLite(t))
	if err != nil {
		t.Fatal(err)
	}
	server, err := store.OpenInProcessRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := server.Client()
	if err := errors.Join(sql.MigrateUp(t.Context()), sql.Close(), server.Close()); err != nil {
		t.Fatal(err)
	}
	strategy, _ := assembly.FindStrategy("merged")
	o := Options{Parts: assembly.Parts{Strategy: strategy, DB: "sqlite:///none"}, TLSCert: "none.pem", TLSKey: "none.pem"}
	database, cache := &examination{o: o, sql: sql}, &examination{o: o, redis: client}
	for name, run := range map[string]func(context.Context) store.Findings{
		"schema": database.checkSchema, "the database's clock": database.checkClocks, "ledger": database.checkLedger,
		"the clock of Redis": cache.checkClocks, "certificate": database.checkSecurity,
	} {
		if found := run(t.Context()); len(found) != 1 || found[0].Level != store.Problem {
			t.Errorf("%s: found %+v", name, found)
		}
	}
}

// full refuses every write.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestPrint_NoOutput checks that the doctor fails if it cannot print what it has found.
func TestPrint_NoOutput(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		if err := new(examination).print(asJSON, full{}); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("as JSON %v: %v", asJSON, err)
		}
	}
}
