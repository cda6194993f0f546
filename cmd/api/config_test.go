package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/commandline"
)

// longSecret is a secret of the minimum length.
const longSecret = "0123456789abcdef0123456789abcdef"

// parseTests are valid command lines and environments, each with a check of the
// result.
var parseTests = []struct {
	name string
	args string
	env  []string
	good func(c config) bool
}{
	{"no flags", "", nil, func(c config) bool {
		return c.verb == verbServe && c.embedded() && c.Guard && !c.Migrate && c.strategy.Name == "lua" &&
			c.Listen == "127.0.0.1:8080" && c.TakeDeadline == 30*time.Second && onLoopback(c.Listen)
	}},
	{"flags before the verb", "--strategy merged serve", nil, func(c config) bool { return c.strategy.Name == "merged" && c.verb == verbServe }},
	{"flags after the verb", "migrate up --db sqlite:///x.db", nil, func(c config) bool { return c.verb == verbMigrateUp && c.DB == "sqlite:///x.db" }},
	{"flags between the words of the verb", "migrate --db sqlite:///x.db down", nil, func(c config) bool { return c.verb == verbMigrateDown }},
	{"a switch off", "--guard off", nil, func(c config) bool { return !c.Guard }},
	{"a switch false", "--guard=false serve", nil, func(c config) bool { return !c.Guard && c.verb == verbServe }},
	{"a bare switch", "--migrate serve", nil, func(c config) bool { return c.Migrate && c.verb == verbServe }},
	{"a switch true", "--migrate true", nil, func(c config) bool { return c.Migrate }},
	{"the environment", "", []string{"HOLDFAST_STRATEGY=merged", "HOLDFAST_GUARD=off", "HOLDFAST_TAKE_DEADLINE=1m"}, func(c config) bool {
		return c.strategy.Name == "merged" && !c.Guard && c.TakeDeadline == time.Minute
	}},
	{"a flag overrides the environment", "--strategy lua --guard", []string{"HOLDFAST_STRATEGY=merged", "HOLDFAST_GUARD=off"}, func(c config) bool {
		return c.strategy.Name == "lua" && c.Guard
	}},
	{"orders are committed by default", "--strategy merged", nil, func(c config) bool { return !c.strategy.Queues() }},
	{"orders are queued", "--strategy async", nil, func(c config) bool { return c.strategy.Queues() }},
	{"queued orders are drained", "drain --db sqlite:///x --redis redis://h:1", nil, func(c config) bool { return c.verb == verbDrain && c.strategy.Queues() }},
	{"an empty variable is unset", "", []string{"HOLDFAST_STRATEGY=", "HOLDFAST_DB="}, func(c config) bool { return c.strategy.Name == "lua" && c.embedded() }},
	{"several hosts", "--strategy merged --db mysql://root@h1:3306,h2/n", nil, func(c config) bool { return c.DB == "mysql://root@h1:3306,h2/n" }},
	{"no Redis without a gate", "--strategy merged --db mysql://root@h/n", nil, func(c config) bool { return !c.embedded() }},
	{"an in-process Redis with SQLite", "--db sqlite:///x.db", nil, func(c config) bool { return c.Redis == "" && c.strategy.HasGate() }},
	{"all interfaces, with a token", "--listen :8080 --admin-token 0123456789abcdef", nil, func(c config) bool { return !onLoopback(c.Listen) }},
	{"a token from the environment", "", []string{"HOLDFAST_ADMIN_TOKEN=!~0123456789abcd"}, func(c config) bool { return c.AdminToken == "!~0123456789abcd" }},
	{"no token in the environment", "", []string{"HOLDFAST_ADMIN_TOKEN="}, func(c config) bool { return c.AdminToken == "" }},
	{"variables of other programs", "", []string{"HOLDFAST_TEST_FOLDER=x", "HOLDFAST_VERSION=0.1.0", "HOLDFAST_PORT=8080", "HOLDFAST_WAIT=1s", "HOLDFAST_SLOT=0"},
		func(c config) bool { return c.embedded() && c.verb == verbServe }},
	{"a drain delay", "--drain-delay 5s", nil, func(c config) bool { return c.DrainDelay == 5*time.Second }},
	{"a drain delay from the environment", "", []string{"HOLDFAST_DRAIN_DELAY=1m"}, func(c config) bool { return c.DrainDelay == time.Minute }},
	{"the default payment window", "", nil, func(c config) bool { return c.PaymentWindow == 15*time.Minute }},
	{"the default memory of sold out", "", nil, func(c config) bool { return c.SoldOutMemory == 100*time.Millisecond }},
	{"no memory of sold out", "--sold-out-memory 0", nil, func(c config) bool { return c.SoldOutMemory == 0 }},
	{"a long memory of sold out", "--sold-out-memory 1s", nil, func(c config) bool { return c.SoldOutMemory == time.Second }},
	{"no payment window", "--payment-window 0", nil, func(c config) bool { return c.PaymentWindow == 0 }},
	{"late payments refused", "--late-payment refuse", nil, func(c config) bool { return c.LatePayment == "refuse" }},
	{"late payments revive", "", nil, func(c config) bool { return c.LatePayment == "revive" }},
	{"a long payment window", "--payment-window 8760h", nil, func(c config) bool { return c.PaymentWindow == 365*24*time.Hour }},
	{"an IPv6 loopback", "--listen [::1]:8080", nil, func(c config) bool { return onLoopback(c.Listen) }},
	{"reconcile with the flags after it", "reconcile --repair --strategy merged --db mysql://root@h/n", nil, func(c config) bool {
		return c.verb == verbReconcile && c.Repair && !c.JSON && c.strategy.Name == "merged"
	}},
	{"reconcile with the flags before it", "--json --redis redis://h:1 --db mysql://root@h/n --repair reconcile", nil, func(c config) bool { return c.verb == verbReconcile && c.Repair && c.JSON }},
	{"reconcile does not listen", "reconcile --strategy merged --db mysql://root@h/n --listen :8080", nil, func(c config) bool { return c.verb == verbReconcile }},
	{"locks in the database", "--strategy lock --lock postgres --redis redis://h:1 --db postgresql://h/n", nil, func(c config) bool { return c.Locks.Backend == "postgres" }},
	{"a lock that the strategy does not use", "--strategy merged --lock mysql --db sqlite:///x", nil, func(c config) bool { return c.Locks.Backend == "mysql" }},
	{"what an instance is built from", "--strategy segment-lock --guard off --segments 3 --slots 4 --lock etcd --etcd h:1 --lease 7s --fence off --redis redis://h:1 --db mysql://root@h/n --migrate",
		nil, func(c config) bool {
			p := c.parts()
			return p.Strategy.Name == "segment-lock" && !p.Guard && p.Segments == 3 && p.Slots == 4 && p.Locks.Backend == "etcd" && p.Locks.Etcd == "h:1" &&
				p.Locks.Lease == 7*time.Second && !p.Fence && p.Redis == "redis://h:1" && p.DB == "mysql://root@h/n" && p.Migrate
		}},
	{"the rules of an instance", "--take-deadline 9s --payment-window 5m --late-payment refuse --sold-out-memory 1s", nil, func(c config) bool {
		o := c.options(nil, nil)
		return o.TakeDeadline == 9*time.Second && o.PaymentWindow == 5*time.Minute && o.LatePayments == "refuse" && o.SoldOutMemory == time.Second
	}},
	{"no access flags", "", nil, func(c config) bool {
		return c.Auth == "none" && c.RateLimit == 0 && c.OpsListen == "" && c.TLSCert == ""
	}},
	{"tokens with a secret", "--auth jwt --admin-token 0123456789abcdef", []string{"HOLDFAST_JWT_SECRET=" + longSecret}, func(c config) bool { return c.Auth == "jwt" && c.JWTSecret == longSecret }},
	{"tokens with keys at a URL", "--auth jwt --admin-token 0123456789abcdef --jwt-jwks https://issuer.test/keys --jwt-issuer i --jwt-audience a", nil, func(c config) bool {
		return c.JWTKeys == "https://issuer.test/keys" && c.JWTIssuer == "i" && c.JWTAudience == "a"
	}},
	{"tokens with keys in a file", "--auth jwt --admin-token 0123456789abcdef --jwt-jwks keys.json", nil, func(c config) bool { return c.JWTKeys == "keys.json" }},
	{"buyers are not authenticated", "--auth none", nil, func(c config) bool { return c.Auth == "none" }},
	{"a certificate", "--tls-cert c.pem --tls-key k.pem", nil, func(c config) bool { return c.TLSCert == "c.pem" && c.TLSKey == "k.pem" }},
	{"a rate limit", "--rate-limit 50 --rate-burst 100", []string{"HOLDFAST_TRUSTED_PROXIES=10.0.0.1, 192.168.0.1/16,::1"}, func(c config) bool {
		return c.RateLimit == 50 && c.RateBurst == 100 && c.TrustedProxies.String() == "10.0.0.1/32,192.168.0.0/16,::1/128"
	}},
	{"a slow rate", "--rate-limit 0.5", nil, func(c config) bool { return c.RateLimit == 0.5 && c.burst() == 1 }},
	{"a burst as the rate", "--rate-limit 2.5", nil, func(c config) bool { return c.burst() == 3 }},
	{"a proxy over IPv4 in IPv6", "--rate-limit 1 --trusted-proxies ::ffff:10.0.0.1", nil, func(c config) bool { return c.TrustedProxies.String() == "10.0.0.1/32" }},
	{"two free ports", "--listen 127.0.0.1:0 --ops-listen 127.0.0.1:0", nil, func(c config) bool { return c.OpsListen == c.Listen }},
	{"a listener for operators on loopback", "--ops-listen 127.0.0.1:9090", nil, func(c config) bool { return c.OpsListen == "127.0.0.1:9090" }},
	{"a listener for operators", "--ops-listen :9090 --admin-token 0123456789abcdef", nil, func(c config) bool { return !onLoopback(c.OpsListen) }},
	{"a log level", "--log-level debug", nil, func(c config) bool { return c.level() < 0 }},
}

func TestParse(t *testing.T) {
	for _, test := range parseTests {
		t.Run(test.name, func(t *testing.T) {
			c, err := parse(strings.Fields(test.args), test.env, io.Discard)
			if err != nil || !test.good(c) {
				t.Errorf("parsed %+v, %v", c, err)
			}
		})
	}
}

// TestParseRefuses checks that the error of every mistake names the flag or the
// variable, and the reason.
func TestParseRefuses(t *testing.T) {
	for _, test := range []struct {
		args string
		env  []string
		says []string
	}{
		{"--strategy unit-rows", nil, []string{"--db", "unit-rows", "mysql://", "postgres://"}},
		{"--strategy unit-rows --db sqlite:///x", nil, []string{"--db", "unit-rows", "mysql://", "postgres://"}},
		{"--late-payment keep", nil, []string{"--late-payment", `"keep"`, "revive"}},
		{"--ack queued", nil, []string{"--ack", "--strategy async"}},
		{"drain", nil, []string{"--db", "drain"}},
		{"drain --db mysql://h:1/x", nil, []string{"--redis", "async"}},
		{"--strategy async --db sqlite:///x --redis redis+cluster://h:1", nil, []string{"--redis", "async", "Cluster"}},
		{"--strategy async --db sqlite:///x --redis rediss+cluster://h:1", nil, []string{"--redis", "async", "Cluster"}},
		{"drain --db sqlite:///x --redis Redis+Cluster://h:1", nil, []string{"--redis", "async", "Cluster"}},
		{"", []string{"HOLDFAST_ACK=queued"}, []string{"HOLDFAST_ACK", "--strategy async"}},
		{"--strategy lock --lock mysql", nil, []string{"--lock", "mysql", "--db"}},
		{"--strategy lock --lock mysql --db sqlite:///x", nil, []string{"--lock", "mysql://", "--db"}},
		{"--strategy segment-lock --lock postgres --redis redis://h:1 --db mysql://h/n", nil, []string{"--lock", "postgres://", "--db"}},
		{"reconcile --strategy lock --lock mysql --redis redis://h:1 --db postgres://h/n", nil, []string{"--lock", "mysql://"}},
		{"--zookeeper h:1,h", nil, []string{"--zookeeper", "server 2 of 2 is not host:port"}},
		{"--zookeeper u@h:1", nil, []string{"--zookeeper", "USER:PASSWORD"}},
		{"--etcd h:1?ca=/x", nil, []string{"--etcd", "https"}},
		{"--etcd https://h:1/a//b", nil, []string{"--etcd", "path", "empty part"}},
		{"--lease 1ms --etcd https://h:1", nil, []string{"--lease"}},
		{"--redlock h:1,h:2", nil, []string{"--redlock", "odd number"}},
		{"--redlock u:p@h:1,h:2,h:3", nil, []string{"--redlock", "h1:p1"}},
		{"--strategy fast", nil, []string{"--strategy", `"fast"`, "merged"}},
		{"--strategy", nil, []string{"--strategy"}},
		{"--nope", nil, []string{"--nope"}},
		{"--guard maybe", nil, []string{"--guard", `"maybe"`, "on, off"}},
		{"--guard=2 serve", nil, []string{"--guard", `"2"`}},
		{"--listen 8080", nil, []string{"--listen", `"8080"`}},
		{"--listen :8080", nil, []string{"--admin-token"}},
		{"--listen 10.0.0.1:8080", nil, []string{"--admin-token"}},
		{"--redis redis://h:1", nil, []string{"--db"}},
		{"--db mysql://h/n", nil, []string{"--redis", "lua"}},
		{"--take-deadline 5", nil, []string{"--take-deadline"}},
		{"--take-deadline 5ms", nil, []string{"--take-deadline", "5ms", "1s"}},
		{"--sold-out-memory -1ms", nil, []string{"--sold-out-memory", "-1ms", "1s"}},
		{"--sold-out-memory 1001ms", nil, []string{"--sold-out-memory", "1.001s", "1s"}},
		{"--payment-window -1m", nil, []string{"--payment-window", "-1m", "1s"}},
		{"--payment-window 999ms", nil, []string{"--payment-window", "999ms", "1s"}},
		{"--payment-window 8761h", nil, []string{"--payment-window", "8761h", "8760h"}},
		{"--payment-window never", nil, []string{"--payment-window", `"never"`}},
		{"--drain-delay -1s", nil, []string{"--drain-delay", "-1s"}},
		{"--drain-delay soon", nil, []string{"--drain-delay", `"soon"`}},
		{"--admin-token 0123456789abcde", nil, []string{"--admin-token", "16"}},
		{"--admin-token=", nil, []string{"--admin-token", "16"}},
		{"", []string{"HOLDFAST_ADMIN_TOKEN=0123456789abcdef\n"}, []string{"--admin-token"}},
		{"", []string{"HOLDFAST_ADMIN_TOKEN=                  "}, []string{"--admin-token"}},
		{"", []string{"HOLDFAST_ADMIN_TOKEN=01234567 89abcdef"}, []string{"--admin-token"}},
		{"", []string{"HOLDFAST_ADMIN_TOKEN=0123456789abcdeé"}, []string{"--admin-token"}},
		{"migrate up --db sqlite:///x", []string{"HOLDFAST_ADMIN_TOKEN=short"}, []string{"--admin-token"}},
		{"--listen x:80/80", nil, []string{"--listen"}},
		{"--listen 127.0.0.1:99999", nil, []string{"--listen", `"127.0.0.1:99999"`, "65535"}},
		{"--listen 127.0.0.1:", nil, []string{"--listen", "host:port"}},
		{"--listen [::1]:x", nil, []string{"--listen", "65535"}},
		{"--listen 127.0.0.1:9090 --ops-listen 127.0.0.1:9090", nil, []string{"--ops-listen", "--listen"}},
		{"--ops-listen 9090", nil, []string{"--ops-listen", `"9090"`}},
		{"--ops-listen :9090", nil, []string{"--admin-token", ":9090"}},
		{"--auth basic", nil, []string{"--auth", `"basic"`, `"none","jwt"`}},
		{"--auth jwt --jwt-secret " + longSecret, nil, []string{"--admin-token", "--auth jwt"}},
		{"--auth jwt --admin-token 0123456789abcdef", nil, []string{"--jwt-secret", "--jwt-jwks"}},
		{"--auth jwt --admin-token 0123456789abcdef --jwt-jwks keys.json --jwt-secret " + longSecret, nil, []string{"--jwt-secret", "--jwt-jwks"}},
		{"--auth jwt --admin-token 0123456789abcdef --jwt-secret " + longSecret[1:], nil, []string{"--jwt-secret", "32"}},
		{"--auth jwt --admin-token " + longSecret + " --jwt-secret " + longSecret, nil, []string{"--jwt-secret", "admin token"}},
		{"--auth jwt --admin-token 0123456789abcdef --jwt-jwks file:///keys.json", nil, []string{"--jwt-jwks", "path of a file"}},
		{"--auth jwt --admin-token 0123456789abcdef --jwt-jwks http://issuer.test/keys", nil, []string{"--jwt-jwks", "https"}},
		{"--jwt-secret " + longSecret, nil, []string{"--jwt-secret", "--auth jwt"}},
		{"", []string{"HOLDFAST_JWT_JWKS=keys.json"}, []string{"--jwt-jwks", "--auth jwt"}},
		{"--jwt-issuer i", nil, []string{"--jwt-issuer", "--auth jwt"}},
		{"--jwt-audience a", nil, []string{"--jwt-audience", "--auth jwt"}},
		{"--tls-cert c.pem", nil, []string{"--tls-key"}},
		{"--tls-key k.pem", nil, []string{"--tls-cert"}},
		{"--rate-limit -1", nil, []string{"--rate-limit", "-1"}},
		{"--rate-limit 10/s", nil, []string{"--rate-limit: ", `"10/s"`, "such as 50 or 0.5"}},
		{"--rate-limit NaN", nil, []string{"--rate-limit", `"NaN"`}},
		{"--rate-limit 0.0001", nil, []string{"--rate-limit", "0.001"}},
		{"--rate-limit 1000001", nil, []string{"--rate-limit", "1000000"}},
		{"--rate-burst -1", nil, []string{"--rate-burst", "-1"}},
		{"--rate-burst 1.5", nil, []string{"--rate-burst: ", "int", `"1.5"`}},
		{"--trusted-proxies ::ffff:10.0.0.0/104", nil, []string{"--trusted-proxies", "10.0.0.0/8"}},
		{"--segments eight", nil, []string{"--segments: ", "int", `"eight"`}},
		{"--trusted-proxies gateway", nil, []string{"--trusted-proxies", `"gateway"`}},
		{"--trusted-proxies 10.0.0.1,", nil, []string{"--trusted-proxies", `""`}},
		{"--trusted-proxies 0.0.0.0/0", nil, []string{"--trusted-proxies", "0.0.0.0/0"}},
		{"--log-level loud", nil, []string{"--log-level", `"loud"`}},
		{"--repair", nil, []string{"--repair", "reconcile"}},
		{"migrate up --json --db sqlite:///x.db", nil, []string{"--json", "reconcile"}},
		{"reconcile", nil, []string{"--db", "reconcile"}},
		{"reconcile --db sqlite:///x.db", nil, []string{"--redis", "in-process"}},
		{"reconcile --db mysql://h/n", nil, []string{"--redis", "lua"}},
		{"run", nil, []string{"run"}},
		{"srve", nil, []string{"srve", `did you mean "serve"`}},
		{"--gard off", nil, []string{"--gard", `did you mean "--guard"`}},
		{"migrate", nil, []string{`"up", "down", "version"`}},
		{"migrate sideways --db sqlite:///x", nil, []string{"sideways"}},
		{"migrate up", nil, []string{"--db"}},
		{"--db nonsense", nil, []string{"--db: ", "mysql://"}},
		{"--db nonsense --redis redis://h:1", nil, []string{"--db: ", "mysql://"}},
		{"--db oracle://h/n", nil, []string{"--db: ", `"oracle://"`}},
		{"--db mysql://h --strategy merged", nil, []string{"--db: ", "names no database"}},
		{"--db mysql://h1,/n --strategy merged", nil, []string{"--db: ", "not host:port"}},
		{"doctor --db nonsense", nil, []string{"--db: "}},
		{"migrate up --db nonsense", nil, []string{"--db: "}},
		{"reconcile --db nonsense", nil, []string{"--db: "}},
		{"--redis nonsense --db mysql://h/n", nil, []string{"--redis: ", "no scheme"}},
		{"", []string{"HOLDFAST_STRATEGY=foo"}, []string{"HOLDFAST_STRATEGY (for --strategy) ", `"foo"`}},
		{"", []string{"HOLDFAST_DB=nonsense"}, []string{"HOLDFAST_DB (for --db): "}},
		{"", []string{"HOLDFAST_DB=mysql://u:p%ss@h/n"}, []string{"HOLDFAST_DB (for --db): ", "percent-encoding"}},
		{"--strategy lock", []string{"HOLDFAST_LOCK=etcd"}, []string{"--etcd: required"}},
		{"", []string{"HOLDFAST_LOCK=paper"}, []string{"HOLDFAST_LOCK (for --lock) "}},
		{"", []string{"HOLDFAST_ETCD=h:1?ca=/x"}, []string{"HOLDFAST_ETCD (for --etcd): "}},
		{"", []string{"HOLDFAST_ADMIN_TOKEN=short"}, []string{"HOLDFAST_ADMIN_TOKEN (for --admin-token): "}},
		{"", []string{"HOLDFAST_LISTEN=8080"}, []string{"HOLDFAST_LISTEN (for --listen): "}},
		{"", []string{"HOLDFAST_GUARDS=off"}, []string{"HOLDFAST_GUARDS: ", "HOLDFAST_GUARD"}},
		{"migrate up --db sqlite:///x", []string{"HOLDFAST_ADMIN_TOKE=x"}, []string{"HOLDFAST_ADMIN_TOKE: ", "HOLDFAST_ADMIN_TOKEN"}},
		{"", []string{"HOLDFAST_GUARD=perhaps"}, []string{"HOLDFAST_GUARD", `"perhaps"`}},
		{"", []string{"HOLDFAST_TAKE_DEADLINE=soon"}, []string{"HOLDFAST_TAKE_DEADLINE", `"soon"`}},
	} {
		t.Run(test.args+strings.Join(test.env, " "), func(t *testing.T) {
			_, err := parse(strings.Fields(test.args), test.env, io.Discard)
			if !errors.As(err, new(commandline.UsageError)) {
				t.Fatalf("not a usage error: %v", err)
			}
			for _, word := range test.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not contain %q", err, word)
				}
			}
			var out strings.Builder
			if code := exitCode(err, &out); code != 2 || !strings.Contains(out.String(), "--help") {
				t.Errorf("exit code %d, %q", code, out.String())
			}
		})
	}
}

func TestIsSecret(t *testing.T) {
	for token, want := range map[string]bool{
		"":                        false,
		"0123456789abcde":         false,
		"0123456789abcdef":        true,
		"0123456789abcdef\n":      false,
		" 123456789abcdef":        false,
		"0123456789abcde\u00a0":   false,
		"0123456789abcde\x7f":     false,
		strings.Repeat("~", 4096): true,
		strings.Repeat("~", 4097): false,
	} {
		if isSecret(token, minToken) != want {
			t.Errorf("%.20q (%d bytes): %v", token, len(token), !want)
		}
	}
}

// TestNoURLIsRepeated checks that no error contains any part of a URL after its
// scheme, because it may be a password.
func TestNoURLIsRepeated(t *testing.T) {
	const url = `mysql://us3r:s"ecr,et@h0st/n4me`
	for _, args := range [][]string{
		{url},
		{"migrate", url},
		{"migrate", "up", url},
		{"--db", "--redis", url},
		{"--" + url},
		{"-" + url},
		{"--=" + url},
		{"--" + url + "=1"},
		{"--nope=" + url},
		{"--nope", url},
		{"--strategy", url},
		{"--strategy=" + url},
		{"--guard", url},
		{"--guard=" + url},
		{"--listen", url},
		{"--listen", "http://us3r/"},
		{"--listen", "http://us3r:s3cret"},
		{"--lock", url},
		{"--lease", url},
		{"--segments", url},
		{"--take-deadline", url},
		{"--drain-delay", url},
		{"--log-level", url},
		{"--zookeeper", "h0st:1," + url},
		{"--etcd", url + ":1"},
		{"--etcd", "https://us3r:s/ecr@h0st/n4me"},
		{"--zookeeper", "us3r:s/ecr,et@h0st:1"},
		{"--redlock", url},
		{"--admin-token", "x" + url + " "},
		{"--ops-listen", url},
		{"--auth", url},
		{"--jwt-jwks", url},
		{"--jwt-issuer", url},
		{"--tls-cert", url},
		{"--rate-limit", url},
		{"--trusted-proxies", "10.0.0.1," + url},
		{"--auth", "jwt", "--admin-token", "0123456789abcdef", "--jwt-jwks", url},
		{"--auth", "jwt", "--admin-token", "0123456789abcdef", "--jwt-jwks", "http://us3r:s3cret@h0st/n4me"},
		{"--redis", url},
		{"--db", url, "--strategy", "lua"},
		{"--help=" + url},
	} {
		check := func(args, env []string) {
			_, err := parse(args, env, io.Discard)
			if !errors.As(err, new(commandline.UsageError)) {
				t.Fatalf("%q: not a usage error: %v", args, err)
			}
			for _, part := range []string{"us3r", `"ecr`, "/ecr", "et@", "h0st/n4me", "://"} {
				if strings.Contains(err.Error(), part) {
					t.Errorf("%q: %v contains %q", args, err, part)
				}
			}
		}
		check(args, nil)
		if name, ok := strings.CutPrefix(args[0], "--"); ok && len(args) == 2 && name != "nope" && name != "db" {
			check(nil, []string{commandline.Variable(name) + "=" + args[1]})
		}
	}
}

// TestHelp checks that --help prints every flag and command, and no value of the environment.
func TestHelp(t *testing.T) {
	var help strings.Builder
	if err := run(t.Context(), []string{"--help", "--strategy", "merged"}, []string{"HOLDFAST_GUARDS=off", "HOLDFAST_GUARD=perhaps", "HOLDFAST_ADMIN_TOKEN=" + longSecret}, &help, io.Discard); err != nil {
		t.Fatal(err)
	}
	model := commandline.New(new(config), options()...).Model
	for _, f := range model.Flags {
		if strings.Contains(help.String(), "--"+f.Name) == f.Hidden {
			t.Errorf("--help: --%s: %v", f.Name, f.Hidden)
		}
	}
	for _, verb := range model.Leaves(true) {
		if !strings.Contains(help.String(), "  "+verb.Path()) {
			t.Errorf("--help does not mention %s", verb.Path())
		}
	}
	if strings.Contains(help.String(), longSecret) {
		t.Error("--help has the admin token")
	}
}

// TestVersion checks that --version prints the version.
func TestVersion(t *testing.T) {
	var stdout strings.Builder
	if err := run(t.Context(), []string{"--version"}, nil, &stdout, io.Discard); err != nil || stdout.String() != "holdfast "+buildVersion()+"\n" {
		t.Errorf("%q, %v", stdout.String(), err)
	}
}

// TestVariables checks that other programs of the project accept the variables of the flags.
func TestVariables(t *testing.T) {
	for _, f := range commandline.New(new(config), options()...).Model.Flags {
		if f.Name == "help" {
			continue
		}
		if err := commandline.Parse(new(struct{}), nil, []string{commandline.Variable(f.Name) + "=x"}, io.Discard, func(*kong.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}
}
