package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// servers are a backend's.
type servers struct {
	backend string
	these   []interface{ Addr() string }
}

func startServers(t testenv.T, backend string) servers {
	s := servers{backend: backend}
	switch backend {
	case "redis":
		s.these = append(s.these, testenv.OwnRedis(t))
	case "redlock":
		for range 3 {
			s.these = append(s.these, testenv.OwnRedis(t))
		}
	case "zookeeper":
		s.these = append(s.these, testenv.OwnZooKeeper(t))
	case "etcd":
		s.these = append(s.these, testenv.OwnEtcd(t))
	}
	return s
}

func (s servers) addrs() (addrs []string) {
	for _, server := range s.these {
		addrs = append(addrs, server.Addr())
	}
	return addrs
}

// counters are what servers have counted so far. Negative: they do not say.
type counters struct {
	requests float64 // that came in
	commands float64 // that Redis executed, those of scripts included
}

// count asks the servers. sends are the commands that are requests, not parts of
// scripts.
func (s servers) count(ctx context.Context, sends []string) (total counters, err error) {
	switch s.backend {
	case "redis", "redlock":
		for _, addr := range s.addrs() {
			client := redis.NewClient(&redis.Options{Addr: addr})
			info, err := client.Info(ctx, "commandstats").Result()
			_ = client.Close()
			if err != nil {
				return total, err
			}
			c := parseCommandStats(info, sends)
			total.requests, total.commands = total.requests+c.requests, total.commands+c.commands
		}
		return total, nil
	case "zookeeper":
		mntr, err := fourLetters(ctx, s.these[0].Addr(), "mntr")
		return counters{parseSum(mntr, "zk_packets_received"), -1}, err
	case "etcd":
		metrics, err := fetch(ctx, "http://"+s.these[0].Addr()+"/metrics")
		// Messages, not calls: the streams of watches and leases have many.
		return counters{parseSum(metrics, "grpc_server_msg_received_total"), -1}, err
	default:
		return counters{-1, -1}, nil
	}
}

// asides are commands of connecting and of counting.
var asides = []string{"info", "hello", "client", "ping", "command", "auth", "select"}

// parseCommandStats adds up INFO commandstats.
func parseCommandStats(info string, sends []string) (c counters) {
	for line := range strings.Lines(info) {
		command, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		var calls float64
		if _, err := fmt.Sscanf(rest, "%f,", &calls); err != nil {
			continue
		}
		name, _, _ := strings.Cut(command, "|")
		if slices.Contains(asides, name) {
			continue
		}
		c.commands += calls
		if slices.Contains(sends, name) {
			c.requests += calls
		}
	}
	return c
}

// parseSum adds up a figure, over all its labels if it has any; -1: it is not
// there.
func parseSum(text, name string) float64 {
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		label, _, _ := strings.Cut(fields[0], "{")
		var figure float64
		if label != name {
			continue
		}
		if _, err := fmt.Sscanf(fields[len(fields)-1], "%g", &figure); err == nil {
			sum, found = sum+figure, true
		}
	}
	if !found {
		return -1
	}
	return sum
}

// fourLetters asks a ZooKeeper.
func fourLetters(ctx context.Context, addr, words string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, words); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

func fetch(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, bytes.NewReader(nil))
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
