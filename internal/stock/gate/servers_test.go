package gate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// servers are the Redis servers of this test program, each kind started when
// the first test asks for it and stopped by TestMain. Tests share them: every
// gate has keys of its own.
type servers struct {
	mu      sync.Mutex
	folder  string
	running []*exec.Cmd
	clients map[string]redis.UniversalClient
}

var shared servers

// kinds of Redis that the gates run on.
var kinds = []string{"Redis", "Cluster", "Sentinel", "InProcess"}

// client returns the client of the kind's servers.
func (s *servers) client(t testing.TB, kind string) redis.UniversalClient {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if client, ok := s.clients[kind]; ok {
		return client
	}
	addrs, err := s.start(kind)
	if err != nil {
		t.Fatalf("starting %s: %v", kind, err)
	}
	client := connect(kind, addrs)
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	if s.clients == nil {
		s.clients = make(map[string]redis.UniversalClient)
	}
	s.clients[kind] = client
	return client
}

// own starts a Redis for one test.
func (s *servers) own(t testing.TB) (server *os.Process, addr string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs, err := s.start("Redis")
	if err != nil {
		t.Fatal(err)
	}
	return s.running[len(s.running)-1].Process, addrs[0]
}

// connect has the settings that matter here of the service's own clients.
func connect(kind string, addrs []string) redis.UniversalClient {
	switch kind {
	case "Cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, MaxRetries: -1, ContextTimeoutEnabled: true})
	case "Sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: addrs, MasterName: "mymaster", MaxRetries: -1, ContextTimeoutEnabled: true})
	}
	return redis.NewClient(&redis.Options{Addr: addrs[0], MaxRetries: -1, ContextTimeoutEnabled: true})
}

func (s *servers) start(kind string) (addrs []string, err error) {
	if s.folder == "" {
		if s.folder, err = os.MkdirTemp("", "holdfast-gate-"); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "Redis":
		addr, err := s.redis()
		return []string{addr}, err
	case "Cluster":
		return s.cluster()
	case "Sentinel":
		return s.sentinels()
	}
	m := miniredis.NewMiniRedis() // ends with the process
	if err := m.Start(); err != nil {
		return nil, err
	}
	return []string{m.Addr()}, nil
}

func (s *servers) redis(args ...string) (addr string, err error) {
	folder, port, err := s.place()
	if err != nil {
		return "", err
	}
	args = append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}, args...)
	return s.serve(port, args...)
}

func (s *servers) cluster() (addrs []string, err error) {
	for range 3 {
		_, bus, err := s.place()
		if err != nil {
			return nil, err
		}
		addr, err := s.redis("--cluster-port", bus, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000")
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	create := exec.Command("redis-cli", append(append([]string{"--cluster", "create"}, addrs...), "--cluster-yes")...)
	if out, err := create.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	for _, addr := range addrs {
		err := eventually(addr, func(ctx context.Context, c *redis.Client) bool {
			return strings.Contains(c.ClusterInfo(ctx).Val(), "cluster_state:ok")
		})
		if err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

func (s *servers) sentinels() (addrs []string, err error) {
	master, err := s.redis()
	if err != nil {
		return nil, err
	}
	_, masterPort, _ := net.SplitHostPort(master)
	if _, err := s.redis("--replicaof", "127.0.0.1 "+masterPort); err != nil {
		return nil, err
	}
	for range 3 {
		folder, port, err := s.place()
		if err != nil {
			return nil, err
		}
		conf := filepath.Join(folder, "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor mymaster 127.0.0.1 %s 2\n", port, folder, masterPort)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return nil, err
		}
		addr, err := s.serve(port, conf, "--sentinel")
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// place is a folder, and a port that nobody listens on, below those that
// connections use.
func (s *servers) place() (folder, port string, err error) {
	for range 200 {
		port := fmt.Sprint(20000 + rand.IntN(12000))
		folder := filepath.Join(s.folder, port)
		if os.Mkdir(folder, 0o700) != nil { // given out before
			continue
		}
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			return folder, port, listener.Close()
		}
	}
	return "", "", errors.New("no port is free")
}

func (s *servers) serve(port string, args ...string) (addr string, err error) {
	command := exec.Command("redis-server", args...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's interrupt is for TestMain
	if err := command.Start(); err != nil {
		return "", err
	}
	s.running = append(s.running, command)
	addr = "127.0.0.1:" + port
	return addr, eventually(addr, func(ctx context.Context, c *redis.Client) bool { return c.Ping(ctx).Err() == nil })
}

// eventually waits up to 20 s until the condition holds of the server.
func eventually(addr string, holds func(context.Context, *redis.Client) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	for !holds(ctx, client) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the server at %s is not ready", addr)
		}
	}
	return nil
}

func (s *servers) stop() {
	for _, client := range s.clients {
		client.Close()
	}
	for _, command := range s.running {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	if s.folder != "" {
		os.RemoveAll(s.folder)
	}
}
