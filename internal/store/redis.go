package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Bounds of the connections to Redis.
const (
	redisPoolSize        = 32
	redisDialTimeout     = time.Second
	redisTimeout         = 2 * time.Second // bounds one read or write
	slotsRefreshInterval = 5 * time.Second // for reading a cluster's slot map
	redisDefaultPort     = "6379"
	sentinelDefaultPort  = "26379"
	maxRedirects         = 3
)

// OpenRedis connects to the Redis at the URL:
//
//	redis://user:password@host:port/0       one server (rediss:// over TLS)
//	redis+sentinel://user:password@h1:p1,h2:p2/mymaster?db=0
//	redis+cluster://user:password@h1:p1,h2:p2
//
// The last two use TLS as rediss+sentinel:// and rediss+cluster://. User and password are for the
// data nodes. The parameters sentinel_username and sentinel_password are for the Sentinels.
// redis:// takes the parameters of go-redis, except that max_retries has no effect. The other
// schemes take skip_verify (for TLS), and redis+sentinel:// takes db.
//
// The client never sends a command twice: after a lost answer the caller must assume that the
// command may have run. Dialling is bounded to 1 s and an answer to 2 s; a context's earlier
// deadline wins. There are at most 32 connections to a node. OpenRedis fails if the first answer
// takes over 5 s.
//
// Errors name the address and the problem, never a password. An invalid URL gives ErrBadURL.
func OpenRedis(ctx context.Context, rawURL string) (redis.UniversalClient, error) {
	client, target, err := redisClient(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	ping := func(ctx context.Context) error { return client.Ping(ctx).Err() }
	if err := awaitAnswer(ctx, ping, isTimeout); err != nil {
		client.Close()
		return nil, fmt.Errorf("connecting to %s: %w", target, err)
	}
	return client, nil
}

// isTimeout reports whether a call has not ended in its time. On a busy machine, connecting may
// take longer.
func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// NewRedis returns a client as OpenRedis does, but does not wait for the Redis to answer.
func NewRedis(rawURL string) (redis.UniversalClient, error) {
	client, _, err := redisClient(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	return client, nil
}

// CheckRedis returns ErrBadURL if OpenRedis cannot use the URL. It does not connect.
func CheckRedis(rawURL string) error {
	client, err := NewRedis(rawURL)
	if err != nil {
		return err
	}
	return client.Close()
}

// OnCluster reports whether the URL names a Redis Cluster.
func OnCluster(rawURL string) bool {
	scheme, _, _ := strings.Cut(rawURL, "://")
	return strings.HasSuffix(strings.ToLower(scheme), "+cluster")
}

// LogRedis redirects the messages of this process's Redis clients from standard error to log, at
// the level Debug. Most messages report failed dials, which the failed calls report too. All
// clients of a process share the log that was set last. The first call must come before OpenRedis.
// Later calls may come at any time.
func LogRedis(log *slog.Logger) {
	redisLog.Store(log)
	installRedisLog()
}

// The client library has one logger for the whole process. It must not be set while clients use it.
var (
	redisLog        atomic.Pointer[slog.Logger]
	installRedisLog = sync.OnceFunc(func() { redis.SetLogger(redisLogger{}) })
)

type redisLogger struct{}

func (redisLogger) Printf(ctx context.Context, format string, values ...any) {
	if log := redisLog.Load(); log.Enabled(ctx, slog.LevelDebug) {
		log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, values...))
	}
}

func redisClient(rawURL string) (client redis.UniversalClient, target string, err error) {
	u, hosts, err := parseHosts(rawURL)
	if err != nil {
		return nil, "", err
	}
	scheme, kind, _ := strings.Cut(u.Scheme, "+")
	if scheme != "redis" && scheme != "rediss" {
		return nil, "", fmt.Errorf("%q is none of redis://, rediss://, redis+sentinel://, redis+cluster://", u.Scheme+"://")
	}
	switch kind {
	case "":
		return singleRedis(u, hosts)
	case "sentinel":
		return sentinelRedis(u, scheme == "rediss", hosts)
	case "cluster":
		return clusterRedis(u, scheme == "rediss", hosts)
	}
	return nil, "", fmt.Errorf("%q is none of redis://, rediss://, redis+sentinel://, redis+cluster://", u.Scheme+"://")
}

// parseHosts parses a URL that may have several hosts, separated by commas.
// url.Parse rejects such a list, so the returned URL has only the first host.
func parseHosts(rawURL string) (*url.URL, []string, error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return nil, nil, errors.New("it has no scheme")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority := rest[:end]
	at := strings.LastIndexByte(authority, '@') + 1
	hosts := strings.Split(authority[at:], ",")
	u, err := parseURL(scheme + "://" + authority[:at] + hosts[0] + rest[end:])
	if err != nil {
		return nil, nil, err
	}
	return u, hosts, nil
}

// addresses returns the hosts as host:port and adds the default port where a
// host has none.
func addresses(hosts []string, port string) ([]string, error) {
	for i, host := range hosts {
		u, err := url.Parse("//" + host)
		if err != nil || u.Hostname() == "" || u.User != nil {
			return nil, errors.New("its hosts are not host:port") // the text is not quoted, because it may contain the password
		}
		hosts[i] = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	}
	return hosts, nil
}

func singleRedis(u *url.URL, hosts []string) (redis.UniversalClient, string, error) {
	if len(hosts) != 1 {
		return nil, "", errors.New("redis:// allows only one host; for several use redis+sentinel:// or redis+cluster://")
	}
	if _, err := addresses(hosts, redisDefaultPort); err != nil {
		return nil, "", err
	}
	options, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, "", errors.New(strings.TrimPrefix(err.Error(), "redis: "))
	}
	options.DialTimeout = cmp.Or(options.DialTimeout, redisDialTimeout)
	options.ReadTimeout = cmp.Or(options.ReadTimeout, redisTimeout)
	options.WriteTimeout = cmp.Or(options.WriteTimeout, redisTimeout)
	options.PoolSize = cmp.Or(options.PoolSize, redisPoolSize)
	options.MaxActiveConns = cmp.Or(options.MaxActiveConns, options.PoolSize)
	options.ConnMaxIdleTime = cmp.Or(options.ConnMaxIdleTime, connectionIdle)
	options.ConnMaxLifetime = cmp.Or(options.ConnMaxLifetime, connectionLife)
	options.DialerRetries = 1
	options.MaxRetries = -1
	options.ContextTimeoutEnabled = true
	options.DisableIdentity = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(options), "Redis at " + options.Addr, nil
}

func sentinelRedis(u *url.URL, secure bool, hosts []string) (redis.UniversalClient, string, error) {
	sentinels, err := addresses(hosts, sentinelDefaultPort)
	if err != nil {
		return nil, "", err
	}
	master := strings.TrimPrefix(u.Path, "/")
	if master == "" || strings.Contains(master, "/") {
		return nil, "", errors.New("redis+sentinel:// needs the master's name as its path: redis+sentinel://h1:p1,h2:p2/mymaster")
	}
	query, err := parameters(u, "db", "skip_verify", "sentinel_username", "sentinel_password")
	if err != nil {
		return nil, "", err
	}
	db := 0
	if query.Has("db") {
		if db, err = strconv.Atoi(query.Get("db")); err != nil || db < 0 {
			return nil, "", fmt.Errorf("db %q is not a database number", query.Get("db"))
		}
	}
	security, err := tlsConfig(secure, query)
	if err != nil {
		return nil, "", err
	}
	options := boundedRedis(u, sentinels, security)
	options.MasterName = master
	options.SentinelUsername = query.Get("sentinel_username")
	options.SentinelPassword = query.Get("sentinel_password")
	options.DB = db
	return redis.NewFailoverClient(options.Failover()), fmt.Sprintf("Redis master %s through the Sentinels at %s", master, strings.Join(sentinels, ", ")), nil
}

func clusterRedis(u *url.URL, secure bool, hosts []string) (redis.UniversalClient, string, error) {
	nodes, err := addresses(hosts, redisDefaultPort)
	if err != nil {
		return nil, "", err
	}
	if u.Path != "" && u.Path != "/" {
		return nil, "", errors.New("a cluster has no numbered databases: redis+cluster://h1:p1,h2:p2")
	}
	query, err := parameters(u, "skip_verify")
	if err != nil {
		return nil, "", err
	}
	security, err := tlsConfig(secure, query)
	if err != nil {
		return nil, "", err
	}
	options := boundedRedis(u, nodes, security)
	options.Dialer = noRetryDialer(security)
	options.MaxRedirects = maxRedirects
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	cluster := options.Cluster()
	cluster.ClusterStateReloadInterval = slotsRefreshInterval
	return redis.NewClusterClient(cluster), "Redis Cluster at " + strings.Join(nodes, ", "), nil
}

// boundedRedis returns the options of a client of Sentinels or of a cluster, with its bounds.
func boundedRedis(u *url.URL, addrs []string, security *tls.Config) *redis.UniversalOptions {
	password, _ := u.User.Password()
	return &redis.UniversalOptions{
		Addrs:                 addrs,
		Username:              u.User.Username(),
		Password:              password,
		TLSConfig:             security,
		MaxRetries:            -1,
		DialTimeout:           redisDialTimeout,
		DialerRetries:         1,
		ReadTimeout:           redisTimeout,
		WriteTimeout:          redisTimeout,
		ContextTimeoutEnabled: true,
		PoolSize:              redisPoolSize,
		MaxActiveConns:        redisPoolSize,
		ConnMaxIdleTime:       connectionIdle,
		ConnMaxLifetime:       connectionLife,
		DisableIdentity:       true,
	}
}

// parameters returns the URL's query and rejects unknown parameters.
func parameters(u *url.URL, known ...string) (url.Values, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("its query cannot be parsed")
	}
	for name := range query {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("parameter %q is none of %s", name, strings.Join(known, ", "))
		}
	}
	return query, nil
}

// tlsConfig returns nil if the connection is not secure.
func tlsConfig(secure bool, query url.Values) (*tls.Config, error) {
	skip := false
	if query.Has("skip_verify") {
		var err error
		if skip, err = strconv.ParseBool(query.Get("skip_verify")); err != nil {
			return nil, fmt.Errorf("skip_verify %q is neither true nor false", query.Get("skip_verify"))
		}
	}
	if !secure {
		return nil, nil
	}
	// The dialler sets the server name to the host of the node.
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: skip}, nil // skip is set only if the URL requires it
}

// noRetryDialer returns a dialler whose connections never make the cluster
// client send a command again. The cluster client must follow redirects, and
// with redirects enabled it also retries after network errors. Dialling itself
// may be repeated.
func noRetryDialer(security *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: redisDialTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: ioTimeout, Interval: ioTimeout / 5, Count: 3,
	}}
	secured := &tls.Dialer{NetDialer: dialer, Config: security} // the timeout includes the handshake
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if security != nil {
			conn, err := secured.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &noRetryTLSConn{conn}, nil
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &noRetryConn{conn.(*net.TCPConn)}, nil // the client dials TCP only
	}
}

// noRetryConn embeds the TCP connection because the pool uses its SyscallConn
// method to check whether an idle connection is still open.
type noRetryConn struct{ *net.TCPConn }

func (c *noRetryConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	return n, hideFromRetry(err)
}

func (c *noRetryConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	return n, hideFromRetry(err)
}

type noRetryTLSConn struct{ net.Conn }

func (c *noRetryTLSConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, hideFromRetry(err)
}

func (c *noRetryTLSConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, hideFromRetry(err)
}

// lostError is a network error that the client does not recognise as one to
// retry: it has neither Unwrap nor Timeout.
type lostError struct{ text string }

func (e *lostError) Error() string { return "connection lost: " + e.text }

// hideFromRetry returns err as a lostError, and nil for nil.
func hideFromRetry(err error) error {
	if err == nil {
		return nil
	}
	return &lostError{err.Error()}
}
