package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var patroni = dependency{"patroni", "patroni", ""}

// patroniConfig is the configuration of a node, with short timeouts. synchronous_mode makes Patroni
// promote only a standby that has every commit.
const patroniConfig = `scope: holdfast
name: node%[1]d
restapi: {listen: %[2]s, connect_address: %[2]s}
etcd3: {hosts: %[3]s}
bootstrap:
  dcs:
    ttl: 5
    loop_wait: 1
    retry_timeout: 2
    synchronous_mode: true
    postgresql:
      use_pg_rewind: false
      parameters: {max_connections: 200, dynamic_shared_memory_type: mmap}
  initdb: [{auth: trust}, {encoding: UTF8}, {locale: C.UTF-8}, no-sync]
postgresql:
  listen: %[4]s
  connect_address: %[4]s
  data_dir: %[5]s/data
  bin_dir: %[6]s
  pgpass: %[5]s/pgpass
  authentication:
    superuser: {username: postgres}
    replication: {username: replicator, password: replicator}
  pg_hba: [host all all 127.0.0.1/32 trust, host replication all 127.0.0.1/32 trust, local all all trust]
  parameters: {unix_socket_directories: %[5]s}
watchdog: {mode: "off"}
`

// PatroniNode is a PostgreSQL server and the Patroni that manages it.
type PatroniNode struct {
	*DatabaseServer // process of Patroni; the PostgreSQL is not a child of it
	data            string
}

// OwnPatroni starts an etcd for this test, and two nodes: a primary and a synchronous
// standby. If the primary is killed, Patroni promotes the standby within about ten seconds.
func OwnPatroni(t T) (primary, standby *PatroniNode) {
	t.Helper()
	etcd := OwnEtcd(t)
	nodes := make([]*PatroniNode, 2)
	for n := range nodes {
		nodes[n] = own(t, "Patroni", func() (*PatroniNode, error) { return newPatroniNode(n, etcd.Addr()) })
		check(t, "Patroni", nodes[n].start())
	}
	primary, standby = nodes[0], nodes[1] // the first node must initialise the cluster before the other starts
	check(t, "Patroni", primary.awaitStandby())
	dbURL, err := createDatabase(primary.admin)
	check(t, "Patroni", err)
	for _, node := range nodes {
		node.url = strings.Replace(dbURL, primary.Addr(), node.Addr(), 1)
	}
	return primary, standby
}

// newPatroniNode prepares a node. It does not start it.
func newPatroniNode(n int, etcd string) (*PatroniNode, error) {
	path, err := lookPath(patroni)
	if err != nil {
		return nil, err
	}
	server, err := lookPath(postgres, postgresFolders)
	if err != nil {
		return nil, err
	}
	owner, err := ownerFor("postgres")
	if err != nil {
		return nil, err
	}
	folder, address, err := env.newPlace("patroni", owner)
	if err != nil {
		return nil, err
	}
	rest, err := newPort()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(folder, "patroni.yml")
	text := fmt.Sprintf(patroniConfig, n, rest.addr(), etcd, address.addr(), folder, filepath.Dir(server))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	node := &PatroniNode{
		DatabaseServer: &DatabaseServer{Server: newServer("Patroni", folder, []string{path, config}, address, rest), admin: "postgres://postgres@" + address.addr()},
		data:           filepath.Join(folder, "data"),
	}
	node.process.owner = owner
	node.process.endSignal = syscall.SIGTERM // on SIGTERM, Patroni stops its PostgreSQL
	node.answers = func(ctx context.Context) error { return onDatabase(ctx, node.admin, "SELECT 1") }
	return node, nil
}

// Kill kills Patroni and its PostgreSQL with SIGKILL, as if the machine had lost its power.
// When Kill returns, all their processes have ended.
func (n *PatroniNode) Kill() {
	must(n.process.kill())
	must(n.killPostgres())
}

// killPostgres kills the PostgreSQL of the node, which runs as a separate process.
func (n *PatroniNode) killPostgres() error {
	text, err := os.ReadFile(filepath.Join(n.data, "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	line, _, _ := strings.Cut(string(text), "\n")
	id, err := strconv.Atoi(line)
	if err != nil || id <= 0 {
		return fmt.Errorf("the process ID of PostgreSQL is %q", line)
	}
	if command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id)); !strings.Contains(string(command), n.data) {
		return nil // PostgreSQL has ended, and another process may have its ID
	}
	return killAll("PostgreSQL", WithDescendants(id))
}

// AcceptsWrites reports whether the node's PostgreSQL is a primary.
func (n *PatroniNode) AcceptsWrites(ctx context.Context) bool {
	return onDatabase(ctx, n.admin, "SELECT 1 / (NOT pg_is_in_recovery())::int") == nil
}

// Promoted returns when the node's PostgreSQL has begun its second timeline.
func (n *PatroniNode) Promoted() time.Time {
	file, err := os.Stat(filepath.Join(n.data, "pg_wal", "00000002.history"))
	must(err)
	return file.ModTime()
}

// end ends the node and removes its data.
func (n *PatroniNode) end() {
	_ = n.process.kill()
	_ = n.killPostgres()
	n.DatabaseServer.end()
}
