package protocol

import (
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
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

// TestReplica promotes the replica of a MariaDB during a sale, after the primary was killed or made
// read-only. The instances, whose URL names both, must continue to sell. No accepted order may be
// lost, because a COMMIT waits for the replica.
func TestReplica(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(primary *testenv.DatabaseServer, admin *store.SQL) error{
		"crash": func(primary *testenv.DatabaseServer, _ *store.SQL) error {
			primary.Kill()
			return nil
		},
		"switchover": func(_ *testenv.DatabaseServer, admin *store.SQL) error {
			return admin.DB().Exec("SET GLOBAL read_only = ON").Error
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, replica := testenv.OwnMariaDBPair(t)
			admin := storetest.SQL(t, primary.URL())
			for _, statement := range []string{"CREATE USER shop@'%'", "GRANT ALL ON `holdfast%`.* TO shop@'%'"} { // root can write to a read-only server
				if err := admin.DB().Exec(statement).Error; err != nil {
					t.Fatal(err)
				}
			}
			both := strings.Replace(severalHosts(t, primary.URL(), replica.URL()), "root@", "shop@", 1)
			sku, crowd := startSale(t, both)
			if err := fail(primary, admin); err != nil {
				t.Fatal(err)
			}
			replica.Promote()
			crowd.awaitMore(t, "the new primary accepts orders")
			checkFailover(t, sku, storetest.SQL(t, replica.URL()), crowd.leave())
		})
	}
}
