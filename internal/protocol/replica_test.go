package protocol

import (
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// severalHosts returns the URL of a database on the servers of these URLs.
func severalHosts(t *testing.T, urls ...string) string {
	t.Helper()
	var hosts []string
	var u *url.URL
	for _, one := range urls {
		var err error
		if u, err = url.Parse(one); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, u.Host)
	}
	u.Host = strings.Join(hosts, ",")
	query := u.Query() // a busy machine takes longer to answer
	if u.Scheme == "mysql" {
		query.Set("timeout", "30s")
	} else {
		query.Set("connect_timeout", "30")
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// TestReplica kills a MariaDB in mid-sale and promotes its replica. The instances, whose
// URL names both, sell on, and no accepted order is lost: a COMMIT waits for the replica.
func TestReplica(t *testing.T) {
	t.Parallel()
	primary, replica := testenv.OwnMariaDBPair(t)
	both := severalHosts(t, primary.URL(), replica.URL())
	s := newShop(t, both)
	sku := newSKU("replica")
	var instances []*instance
	for range 2 {
		i := s.open(t, settings{strategy: "merged", db: openSQL(t, both).Ledger})
		defer i.Close()
		instances = append(instances, i)
	}
	addStock(t, instances[0], sku, 1_000_000)
	crowd := startCrowd(t, sku, instances...)
	crowd.awaitMore(t, "orders are accepted")
	primary.Kill()
	replica.Promote()
	crowd.awaitMore(t, "the new primary accepts orders")
	s.checkFailover(t, sku, openSQL(t, replica.URL()), crowd.leave())
}
