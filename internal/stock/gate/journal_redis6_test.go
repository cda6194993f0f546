package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// redis6 answers XAUTOCLAIM as Redis 6.2 does: two messages are claimed, and the first was deleted
// from the stream. It returns the acknowledged messages, and those deleted before.
func redis6(t *testing.T, entry string, order uuid.UUID) (client *redis.Client, acknowledged <-chan string) {
	t.Helper()
	const gone, there = "1-0", "2-0"
	acked, deleted := make(chan string, 1), ""
	message := fmt.Sprintf("*2\r\n$3\r\n%s\r\n*2\r\n$5\r\norder\r\n$36\r\n%s\r\n", there, order)
	s, err := server.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for name, answer := range map[string]server.Cmd{
		"HELLO":  func(c *server.Peer, _ string, _ []string) { c.WriteError("ERR unknown command") },
		"CLIENT": func(c *server.Peer, _ string, _ []string) { c.WriteOK() },
		"XAUTOCLAIM": func(c *server.Peer, _ string, args []string) {
			claimed := "*-1\r\n" + message
			if slices.ContainsFunc(args, func(arg string) bool { return strings.EqualFold(arg, "JUSTID") }) {
				claimed = "$3\r\n" + gone + "\r\n$3\r\n" + there + "\r\n"
			}
			c.WriteRaw("*2\r\n$3\r\n0-0\r\n*2\r\n" + claimed)
		},
		"XRANGE": func(c *server.Peer, _ string, args []string) {
			if args[1] == gone {
				c.WriteLen(0)
				return
			}
			c.WriteRaw("*1\r\n" + message)
		},
		"HMGET": func(c *server.Peer, _ string, args []string) {
			c.WriteLen(len(args) - 1)
			for _, field := range args[1:] {
				if field == order.String() {
					c.WriteBulk(entry)
				} else {
					c.WriteNull()
				}
			}
		},
		"XACK": func(c *server.Peer, _ string, args []string) {
			acked <- strings.Join(args[2:], " ") + " after the deletion of " + deleted
			c.WriteInt(1)
		},
		"XDEL": func(c *server.Peer, _ string, args []string) { deleted = strings.Join(args[1:], " "); c.WriteInt(0) },
	} {
		if err := s.Register(name, answer); err != nil {
			t.Fatal(err)
		}
	}
	client = redis.NewClient(&redis.Options{Addr: s.Addr().String(), DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return client, acked
}

// TestClaimBeforeRedis7 checks that a message that was deleted from the stream does not keep the
// others from being claimed, and is not delivered again. It must stay pending until it is deleted,
// whatever breaks.
func TestClaimBeforeRedis7(t *testing.T) {
	t.Parallel()
	order, take := uuid.New(), uuid.New()
	client, acknowledged := redis6(t, "2-0 "+take.String()+" 7 b a=1 1000000", order)
	takes, err := NewScript(NewCounter(client, uuid.New(), Layout{})).Journal().Claim(t.Context(), "me", 10, 0)
	if err != nil || len(takes) != 1 || takes[0].OrderID != order || takes[0].TakeID != take {
		t.Fatalf("claimed %+v, %v", takes, err)
	}
	if got := <-acknowledged; got != "1-0 after the deletion of 1-0" {
		t.Errorf("acknowledged %s", got)
	}
}
