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
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Bounds of the connections to Redis.
const (
	redisPool        = 32
	redisDial        = time.Second
	redisSilence     = 2 * time.Second
	redisTopology    = 5 * time.Second // how long a cluster's slots are believed unasked
	redisDefaultPort = "6379"
	sentinelPort     = "26379"
	clusterRedirects = 3
)

// OpenRedis connects to the Redis at the URL:
//
//	redis://user:password@host:port/0       one server (rediss:// over TLS)
//	redis+sentinel://user:password@h1:p1,h2:p2/mymaster?db=0
//	redis+cluster://user:password@h1:p1,h2:p2
//
// The last two run over TLS as rediss+sentinel:// and rediss+cluster://. User
// and password are the data nodes'; a Sentinel's own are the parameters
// sentinel_username and sentinel_password. Other parameters: those of go-redis
// for redis://, but max_retries; db, skip_verify (TLS) for the others.
//
// No command is ever sent twice: a lost answer is the caller's to think about.
// Dialling is bounded to 1 s, an answer to 2 s, a context's deadline counts,
// and a node has at most 32 connections. The first answer must come within 5 s.
//
// Errors name the address and the problem, never a password. ErrBadURL: the
// URL itself is at fault.
func OpenRedis(ctx context.Context, rawURL string) (redis.UniversalClient, error) {
	client, target, err := redisClient(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadURL, err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		client.Close()
		return nil, fmt.Errorf("connecting to %s: %w", target, err)
	}
	return client, nil
}

// LogRedis sends what the Redis clients of this process log, which else goes to
// standard error, to log at the level Debug: a line for every failed dial tells
// an operator nothing that the failed calls do not. The clients' logger is the
// process's only one: call it once, before OpenRedis.
func LogRedis(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, values ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, values...))
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

// parseHosts parses a URL that may name several hosts, separated by commas,
// which the URL parser does not take.
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

// addresses gives the hosts that name no port the usual one.
func addresses(hosts []string, port string) ([]string, error) {
	for i, host := range hosts {
		u, err := url.Parse("//" + host)
		if err != nil || u.Hostname() == "" || u.User != nil {
			return nil, errors.New("its hosts are not host:port") // not quoted: it may be half a password
		}
		hosts[i] = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	}
	return hosts, nil
}

func singleRedis(u *url.URL, hosts []string) (redis.UniversalClient, string, error) {
	if len(hosts) != 1 {
		return nil, "", errors.New("redis:// takes one host; several are redis+sentinel:// or redis+cluster://")
	}
	if _, err := addresses(hosts, redisDefaultPort); err != nil {
		return nil, "", err
	}
	options, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, "", errors.New(strings.TrimPrefix(err.Error(), "redis: "))
	}
	options.DialTimeout = cmp.Or(options.DialTimeout, redisDial)
	options.ReadTimeout = cmp.Or(options.ReadTimeout, redisSilence)
	options.WriteTimeout = cmp.Or(options.WriteTimeout, redisSilence)
	options.PoolSize = cmp.Or(options.PoolSize, redisPool)
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
	sentinels, err := addresses(hosts, sentinelPort)
	if err != nil {
		return nil, "", err
	}
	master := strings.TrimPrefix(u.Path, "/")
	if master == "" || strings.Contains(master, "/") {
		return nil, "", errors.New("redis+sentinel:// names the master: redis+sentinel://h1:p1,h2:p2/mymaster")
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
	security, err := transport(secure, query)
	if err != nil {
		return nil, "", err
	}
	password, _ := u.User.Password()
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:            master,
		SentinelAddrs:         sentinels,
		SentinelUsername:      query.Get("sentinel_username"),
		SentinelPassword:      query.Get("sentinel_password"),
		Username:              u.User.Username(),
		Password:              password,
		DB:                    db,
		TLSConfig:             security,
		MaxRetries:            -1,
		DialTimeout:           redisDial,
		DialerRetries:         1,
		ReadTimeout:           redisSilence,
		WriteTimeout:          redisSilence,
		ContextTimeoutEnabled: true,
		PoolSize:              redisPool,
		MaxActiveConns:        redisPool,
		ConnMaxIdleTime:       connectionIdle,
		ConnMaxLifetime:       connectionLife,
		DisableIdentity:       true,
	}), fmt.Sprintf("Redis master %s by the Sentinels at %s", master, strings.Join(sentinels, ", ")), nil
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
	security, err := transport(secure, query)
	if err != nil {
		return nil, "", err
	}
	password, _ := u.User.Password()
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      nodes,
		Username:                   u.User.Username(),
		Password:                   password,
		TLSConfig:                  security,
		Dialer:                     onceDialer(security),
		MaxRedirects:               clusterRedirects,
		MaxRetries:                 -1,
		DialTimeout:                redisDial,
		DialerRetries:              1,
		ReadTimeout:                redisSilence,
		WriteTimeout:               redisSilence,
		ContextTimeoutEnabled:      true,
		PoolSize:                   redisPool,
		MaxActiveConns:             redisPool,
		ConnMaxIdleTime:            connectionIdle,
		ConnMaxLifetime:            connectionLife,
		ClusterStateReloadInterval: redisTopology,
		DisableIdentity:            true,
		MaintNotificationsConfig:   &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}), "Redis Cluster at " + strings.Join(nodes, ", "), nil
}

// parameters returns the URL's query, in which only these names may stand.
func parameters(u *url.URL, known ...string) (url.Values, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("its query cannot be parsed")
	}
next:
	for name := range query {
		for _, k := range known {
			if name == k {
				continue next
			}
		}
		return nil, fmt.Errorf("parameter %q is none of %s", name, strings.Join(known, ", "))
	}
	return query, nil
}

func transport(secure bool, query url.Values) (*tls.Config, error) {
	skip := false
	if query.Has("skip_verify") {
		var err error
		if skip, err = strconv.ParseBool(query.Get("skip_verify")); err != nil {
			return nil, errors.New("skip_verify is neither true nor false")
		}
	}
	if !secure {
		return nil, nil
	}
	// The server's name is that of the node dialled.
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: skip}, nil // skip is the user's choice
}

// onceDialer dials connections on which a lost answer stays lost: the cluster
// client, which needs its redirects, would otherwise send a command again
// after any network error. Dialling itself may be repeated.
func onceDialer(security *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: redisDial, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: silence, Interval: silence / 5, Count: 3,
	}}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		plain, ok := conn.(*net.TCPConn)
		if security == nil {
			if !ok {
				return nil, fmt.Errorf("%s is not a TCP address", address)
			}
			return &onceConn{plain}, nil
		}
		config := security.Clone()
		if config.ServerName, _, err = net.SplitHostPort(address); err != nil {
			conn.Close()
			return nil, err
		}
		secured := tls.Client(conn, config)
		ctx, cancel := context.WithTimeout(ctx, redisDial)
		defer cancel()
		if err := secured.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		return &onceTLSConn{secured}, nil
	}
}

// onceConn keeps its TCP connection's other methods: the pool looks through
// them whether an idle connection is still open.
type onceConn struct{ *net.TCPConn }

func (c *onceConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	return n, lost(err)
}

func (c *onceConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	return n, lost(err)
}

type onceTLSConn struct{ *tls.Conn }

func (c *onceTLSConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, lost(err)
}

func (c *onceTLSConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, lost(err)
}

// lostError is a network error that the client cannot recognise as one it
// would retry: it neither unwraps nor says that it is a timeout.
type lostError struct{ text string }

func (e *lostError) Error() string { return "the answer is lost: " + e.text }

func lost(err error) error {
	if err == nil {
		return nil
	}
	return &lostError{err.Error()}
}
