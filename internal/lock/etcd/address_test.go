package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	e, err := parseAddress("https://us%65r:p%40ss@h1:1,h2:2/team/shop?ca=/a&cert=/b%20c&key=/d")
	if err != nil {
		t.Fatal(err)
	}
	if e.User != "user" || e.Password != "p@ss" || !slices.Equal(e.endpoints(), []string{"https://h1:1", "https://h2:2"}) ||
		e.base() != "team/shop/" || e.ca != "/a" || e.cert != "/b c" || e.key != "/d" {
		t.Errorf("parseAddress returned %+v", e)
	}
	for _, text := range []string{"h1:1,h2:2", "http://h1:1,h2:2"} {
		e, err := parseAddress(text)
		if err != nil || e.secure || e.base()+locksBelow != Prefix || !slices.Equal(e.endpoints(), []string{"http://h1:1", "http://h2:2"}) {
			t.Errorf("parseAddress(%q) = %+v, %v", text, e, err)
		}
	}
	for text, says := range map[string]string{
		"ftp://h1:1":                "the scheme is neither http nor https",
		"h1":                        "server 1 of 1 is not host:port",
		"h1:1?ca=/a":                "ca, cert and key need the scheme https",
		"https://h1:1?cert=/a":      "cert and key need each other",
		"https://h1:1?key=/a":       "cert and key need each other",
		"https://h1:1?x=y":          "the parameters after ? are not",
		"https://h1:1?ca=":          "the parameters after ? are not",
		"https://h1:1?ca=/a&ca=/b":  "the parameters after ? are not",
		"https://h1:1?ca=%zz":       "the parameters after ? have an invalid percent-encoding",
		"https://u:s3?cret@h1:1/ab": "server 1 of 1 is not host:port",
	} {
		if err := CheckAddress(text); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "cret") {
			t.Errorf("CheckAddress(%q): %v, want an error that says %q", text, err, says)
		}
	}
}

// FuzzCheckAddress checks that no error contains a password.
func FuzzCheckAddress(f *testing.F) {
	for _, text := range []string{"h1:1", "h1:1,h2:2/team/shop?ca=/a", "@", "?", "%zz", "://"} {
		f.Add("", text)
		f.Add(text, "h1:1?cert=x")
	}
	f.Fuzz(func(t *testing.T, password, rest string) {
		const marker = "s3cr3t!" // must not appear in an error
		for _, scheme := range []string{"", "https://"} {
			if err := CheckAddress(scheme + "user:" + marker + password + "@" + rest); err != nil && strings.Contains(err.Error(), marker) {
				t.Errorf("an error contains the password: %v", err)
			}
		}
	})
}

// TestCredentialsAndTLS locks in an etcd with TLS, client certificates and users. The user of the
// locks may use only one prefix.
func TestCredentialsAndTLS(t *testing.T) {
	t.Parallel()
	server, cert, key := testenv.OwnTLSEtcd(t)
	files := url.Values{"ca": {cert}, "cert": {cert}, "key": {key}}.Encode()
	security, err := ensemble{secure: true, ca: cert, cert: cert, key: key}.tlsConfig()
	if err != nil {
		t.Fatal(err)
	}
	enableAuth(t, clientv3.Config{Endpoints: []string{"https://" + server.Addr()}, TLS: security}, "team/shop/")
	address := fmt.Sprintf("https://shop:p%%40ss@%s/team/shop?%s", server.Addr(), files)
	open := func(t *testing.T, address string) *Locker { return newLockerWith(t, address, 9*time.Second) }
	t.Run("locks", func(t *testing.T) {
		t.Parallel()
		ours, others := open(t, address), open(t, address)
		session := nextSession(t, ours)
		until := session.Until()
		lease := locktest.MustLock(t, ours, "a")
		locktest.MustBeHeld(t, others, "a")
		waiting := locktest.LockAsync(t.Context(), others, "a")
		testenv.Await(t, "the lease is renewed", func() bool { return session.Until().After(until) })
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
	})
	certified := url.Values{"cert": {cert}, "key": {key}}.Encode()
	trusting := url.Values{"ca": {cert}}.Encode()
	for what, address := range map[string]string{
		"wrong password":        "https://shop:s3cr3t@ADDR/team/shop?" + files,
		"another prefix":        "https://shop:p%40ss@ADDR?" + files,
		"no user":               "https://ADDR/team/shop?" + files,
		"no client certificate": "https://shop:p%40ss@ADDR/team/shop?" + trusting,
		"unknown authority":     "https://shop:p%40ss@ADDR/team/shop?" + certified,
		"no encryption":         "shop:p%40ss@ADDR/team/shop",
		"missing file":          "https://shop:p%40ss@ADDR/team/shop?ca=/nonesuch",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			// New tries until ctx ends. It must have enough time to succeed, if it wrongly could.
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			l, err := New(ctx, strings.ReplaceAll(address, "ADDR", server.Addr()), 0)
			if err == nil {
				_ = l.Close()
				t.Error("New returned no error")
			} else if strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "p@ss") {
				t.Errorf("the error contains the password: %v", err)
			}
		})
	}
}

// TestFilesThatCannotBeRead checks that an error names the file that is wrong.
func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	noPEM := filepath.Join(t.TempDir(), "no.pem")
	if err := os.WriteFile(noPEM, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for query, says := range map[string]string{
		"ca=/nonesuch":                    "reading the CA's certificate: open /nonesuch",
		"ca=" + noPEM:                     "reading the CA's certificate: " + noPEM + " has no certificate in PEM format",
		"cert=/nonesuch&key=/nonesuch":    "reading the client's certificate and key: open /nonesuch",
		"cert=" + noPEM + "&key=" + noPEM: "reading the client's certificate and key: ",
	} {
		if _, err := New(t.Context(), "https://127.0.0.1:1?"+query, 0); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", query, err, says)
		}
	}
}

// TestLoginThatEnds changes the password of the user of a Locker to the same password. The server
// then forgets the Locker's login, as it does after the login's time to live. The Locker must log
// in again.
func TestLoginThatEnds(t *testing.T) {
	t.Parallel()
	server := testenv.OwnEtcd(t)
	config := clientv3.Config{Endpoints: []string{server.Addr()}}
	enableAuth(t, config, "holdfast/")
	l := newLockerWith(t, "shop:p%40ss@"+server.Addr(), 0)
	locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
	config.Username, config.Password = "root", "r00t"
	if _, err := adminClient(t, config).UserChangePassword(t.Context(), "shop", "p@ss"); err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
}

func adminClient(t *testing.T, config clientv3.Config) *clientv3.Client {
	t.Helper()
	config.DialTimeout, config.Logger = 5*time.Second, zap.NewNop()
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// enableAuth makes the server require users, and adds the user shop, with the password
// p@ss, who may use the keys with the prefix.
func enableAuth(t *testing.T, config clientv3.Config, prefix string) {
	t.Helper()
	client := adminClient(t, config)
	ctx := t.Context()
	_, err1 := client.UserAdd(ctx, "root", "r00t")
	_, err2 := client.UserGrantRole(ctx, "root", "root")
	_, err3 := client.RoleAdd(ctx, "locks")
	_, err4 := client.RoleGrantPermission(ctx, "locks", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	_, err5 := client.UserAdd(ctx, "shop", "p@ss")
	_, err6 := client.UserGrantRole(ctx, "shop", "locks")
	_, err7 := client.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		t.Fatal(err)
	}
}
