package testenv

import (
	"context"
	"fmt"
	"strings"
)

// galera is the replication library, at its path in Debian.
var galera = dependency{"/usr/lib/galera/libgalera_smm.so", "galera-4 rsync", ""}

// galeraNodes is the size of a cluster. The cluster survives the loss of one node.
const galeraNodes = 3

// OwnGalera starts a Galera cluster of three MariaDB servers for this test. All
// of them accept writes. Their URLs name the same database.
func OwnGalera(t T) []*DatabaseServer {
	t.Helper()
	_, err := lookPath(galera)
	check(t, "Galera", err)
	// Each node needs three ports besides the port of MariaDB.
	group, increments, transfers := freeAddresses(t), freeAddresses(t), freeAddresses(t)
	nodes := make([]*DatabaseServer, galeraNodes)
	for n := range nodes {
		// A node that is silent for suspect_timeout is expelled, and until then the others answer
		// nothing. On a busy machine, a healthy node may be silent for seconds.
		args := []string{
			"--wsrep-on=ON", "--wsrep-provider=" + galera.file, "--wsrep-cluster-address=gcomm://" + strings.Join(group, ","),
			"--wsrep-node-address=" + group[n], "--wsrep-sst-method=rsync", "--wsrep-sst-receive-address=" + transfers[n],
			fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://%s;ist.recv_addr=%s;gcache.size=16M;evs.keepalive_period=PT0.2S;evs.inactive_check_period=PT0.2S;evs.suspect_timeout=PT10S;evs.inactive_timeout=PT30S;evs.install_timeout=PT15S", group[n], increments[n]),
			"--wsrep-slave-threads=4", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--innodb-flush-log-at-trx-commit=0",
		}
		if n == 0 {
			args = append(args, "--wsrep-new-cluster")
		}
		node := own(t, "Galera", func() (*DatabaseServer, error) { return startMariaDB(args...) })
		check(t, "Galera", await(maxStart, func(ctx context.Context) error { return node.joined(ctx, n+1) }))
		nodes[n] = node
	}
	dbURL, err := createDatabase(nodes[0].admin)
	check(t, "Galera", err)
	for _, node := range nodes {
		node.url = strings.Replace(dbURL, nodes[0].admin, node.admin, 1)
	}
	return nodes
}

// freeAddresses returns a free address for each node.
func freeAddresses(t T) []string {
	t.Helper()
	all := make([]string, galeraNodes)
	for n := range all {
		all[n] = fmt.Sprintf("127.0.0.1:%d", Port(t))
	}
	return all
}

// joined returns nil if the node accepts statements in a cluster of this size.
func (s *DatabaseServer) joined(ctx context.Context, size int) error {
	if err := s.process.running(); err != nil {
		return finalError{err}
	}
	for name, want := range map[string]string{"wsrep_ready": "ON", "wsrep_cluster_size": fmt.Sprint(size)} {
		got, err := s.show(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'")
		if err != nil {
			return err
		}
		if got["Value"] != want {
			return fmt.Errorf("%s is %s, not %s", name, got["Value"], want)
		}
	}
	return nil
}
