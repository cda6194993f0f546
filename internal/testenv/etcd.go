package testenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
)

var etcd = dependency{"etcd", "etcd-server", "HOLDFAST_TEST_ETCD"}

// Etcd returns the host:port of an etcd that all tests of the process share.
func Etcd(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_ETCD", "etcd", func() (string, error) {
		s, err := startEtcd()
		if err != nil {
			return "", err
		}
		return s.Addr(), nil
	})
}

// EtcdServer is a single etcd. Its data and leases survive Restart.
type EtcdServer struct {
	Server
	port, peer *port
}

// OwnEtcd starts an etcd for this test.
func OwnEtcd(t T) *EtcdServer {
	t.Helper()
	s, err := startEtcd()
	check(t, "etcd", err)
	t.Cleanup(func() {
		s.process.end()
		s.port.release()
		s.peer.release()
	})
	return s
}

// Addr returns host:port.
func (s *EtcdServer) Addr() string { return s.port.addr() }

func startEtcd() (*EtcdServer, error) {
	path, err := lookPath(etcd)
	if err != nil {
		return nil, err
	}
	folder, err := env.newFolder("etcd")
	if err != nil {
		return nil, err
	}
	s := &EtcdServer{}
	if s.port, err = newPort(); err != nil {
		return nil, err
	}
	if s.peer, err = newPort(); err != nil {
		return nil, err
	}
	client, peer := "http://"+s.port.addr(), "http://"+s.peer.addr()
	s.Server = newServer("etcd", folder, []string{
		path, "--name", "n1", "--data-dir", filepath.Join(folder, "data"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "n1=" + peer,
	})
	s.answers = func(ctx context.Context) error { return healthy(ctx, client+"/health") }
	return s, s.start()
}

// healthy returns nil if the etcd answers that it is healthy.
func healthy(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s", response.Status, answer)
	}
	return nil
}
