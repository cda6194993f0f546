package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
)

var etcd = dependency{"etcd", "etcd-server", "HOLDFAST_TEST_ETCD"}

// Etcd returns the host:port of an etcd that all tests of the process share.
func Etcd(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_ETCD", "etcd", func() (*EtcdServer, error) { return startEtcd("") }, (*EtcdServer).Addr)
}

// EtcdServer is an etcd. Its data and leases survive Restart.
type EtcdServer struct {
	Server
	name string
	peer *port
}

// OwnEtcd starts an etcd for this test.
func OwnEtcd(t T) *EtcdServer {
	t.Helper()
	return own(t, "etcd", func() (*EtcdServer, error) { return startEtcd("") })
}

// OwnTLSEtcd starts an etcd for this test that takes encrypted connections only, from
// clients with a certificate. The files cert and key belong to a certificate that
// server and clients share, and that is its own authority.
func OwnTLSEtcd(t T) (s *EtcdServer, cert, key string) {
	t.Helper()
	folder, err := env.newFolder("etcd-tls")
	check(t, "etcd with TLS", err)
	check(t, "etcd with TLS", writeCertificate(folder))
	s = own(t, "etcd with TLS", func() (*EtcdServer, error) { return startEtcd(folder) })
	return s, filepath.Join(folder, certFile), filepath.Join(folder, keyFile)
}

// OwnEtcdCluster starts a cluster of three etcds for this test. It survives the loss of
// one of them. args are further arguments for each.
func OwnEtcdCluster(t T, args ...string) []*EtcdServer {
	t.Helper()
	var members []*EtcdServer
	for n := range 3 {
		member := own(t, "etcd", func() (*EtcdServer, error) { return newEtcd(fmt.Sprintf("n%d", n+1), "") })
		member.process.args = append(member.process.args, args...)
		members = append(members, member)
	}
	starts := make(chan error) // a member answers only when a majority of the members runs
	for _, member := range members {
		member.joins(members)
		go func() { starts <- member.start() }()
	}
	for range members {
		check(t, "etcd", <-starts)
	}
	return members
}

// startEtcd starts an etcd. With a folder that writeCertificate has filled, its clients
// need TLS.
func startEtcd(tlsFolder string) (*EtcdServer, error) {
	s, err := newEtcd("n1", tlsFolder)
	if err != nil {
		return nil, err
	}
	s.joins([]*EtcdServer{s})
	return s, s.start()
}

// newEtcd prepares an etcd. The caller calls joins and start.
func newEtcd(name, tlsFolder string) (*EtcdServer, error) {
	path, err := lookPath(etcd)
	if err != nil {
		return nil, err
	}
	folder, port, err := env.newPlace("etcd", nil)
	if err != nil {
		return nil, err
	}
	s := &EtcdServer{name: name}
	if s.peer, err = newPort(); err != nil {
		return nil, err
	}
	client, peer := "http://"+port.addr(), s.peerURL()
	var security []string
	visitor := http.DefaultClient
	if tlsFolder != "" {
		cert, key := filepath.Join(tlsFolder, certFile), filepath.Join(tlsFolder, keyFile)
		security = []string{"--cert-file", cert, "--key-file", key, "--trusted-ca-file", cert, "--client-cert-auth"}
		client = "https://" + port.addr()
		if visitor, err = tlsVisitor(cert, key); err != nil {
			return nil, err
		}
	}
	s.Server = newServer("etcd", folder, append([]string{
		path, "--name", name, "--data-dir", filepath.Join(folder, "data"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
	}, security...), port, s.peer)
	s.answers = func(ctx context.Context) error { return healthy(ctx, visitor, client+"/health") }
	return s, nil
}

// joins makes the etcd a member of a cluster. It must not run yet.
func (s *EtcdServer) joins(members []*EtcdServer) {
	var peers []string
	for _, member := range members {
		peers = append(peers, member.name+"="+member.peerURL())
	}
	s.process.args = append(s.process.args, "--initial-cluster", strings.Join(peers, ","))
}

func (s *EtcdServer) peerURL() string { return "http://" + s.peer.addr() }

// Leads reports whether the etcd answers and is the leader of its cluster.
func (s *EtcdServer) Leads(ctx context.Context) bool {
	a, err := Call(ctx, http.DefaultClient, http.MethodPost, "http://"+s.Addr()+"/v3/maintenance/status", "{}")
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		} `json:"header"`
		Leader string `json:"leader"`
	}
	return err == nil && json.Unmarshal(a.Text, &status) == nil && status.Leader != "" && status.Leader == status.Header.Member
}
