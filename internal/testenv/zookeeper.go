package testenv

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

var (
	java      = dependency{"java", "default-jdk-headless zookeeper", "HOLDFAST_TEST_ZOOKEEPER"}
	zookeeper = dependency{"/usr/share/java/zookeeper.jar", "zookeeper libzookeeper-java", "HOLDFAST_TEST_ZOOKEEPER"}
)

// ZooKeeper returns the host:port of a ZooKeeper that all tests of the process
// share.
func ZooKeeper(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_ZOOKEEPER", "ZooKeeper", startZooKeeper, (*ZooKeeperServer).Addr)
}

// ZooKeeperServer is a single ZooKeeper. Its data and sessions survive Restart.
// Its tick is 500 ms, so a session ends at most half a second late. It accepts session timeouts of
// one second to one hour.
type ZooKeeperServer struct{ Server }

// OwnZooKeeper starts a ZooKeeper for this test.
func OwnZooKeeper(t T) *ZooKeeperServer {
	t.Helper()
	return own(t, "ZooKeeper", startZooKeeper)
}

func startZooKeeper() (*ZooKeeperServer, error) {
	path, err := lookPath(java)
	if err != nil {
		return nil, err
	}
	if _, err := lookPath(zookeeper); err != nil {
		return nil, err
	}
	folder, port, err := env.newPlace("zookeeper", nil)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`tickTime=500
maxSessionTimeout=3600000
dataDir=%s
clientPort=%d
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
4lw.commands.whitelist=*
`, filepath.Join(folder, "data"), port.number)
	file := filepath.Join(folder, "zoo.cfg")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	s := &ZooKeeperServer{newServer("ZooKeeper", folder, []string{
		path, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", zookeeper.file,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", file,
	}, port)}
	s.answers = func(ctx context.Context) error {
		text, err := s.Monitor(ctx)
		if err == nil && !strings.Contains(text, "zk_server_state") {
			err = fmt.Errorf("mntr answers %q", text)
		}
		return err
	}
	return s, s.start()
}

// Monitor returns the server's figures, a line with a name and a value for each.
func (s *ZooKeeperServer) Monitor(ctx context.Context) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil { // a server that is starting may never answer
		return "", err
	}
	if _, err := io.WriteString(conn, "mntr"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}
