package doctor

import (
	"context"
	"crypto/x509"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/store"
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
