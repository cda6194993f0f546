package main

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/token"
)

// minRate and maxRate bound --rate-limit, unless it is 0, and maxRate --rate-burst. No
// instance answers as much.
const minRate, maxRate = 0.001, 1_000_000

// serverFlags are the flags of the HTTP server: where it listens, who can reach it, and
// who may do what.
type serverFlags struct {
	listen     string
	opsListen  string // empty: operators use listen
	adminToken string

	tlsCert, tlsKey string // files; empty: plain HTTP

	jwt                    bool // --auth jwt
	jwtSecret, jwtKeys     string
	jwtIssuer, jwtAudience string

	rateLimit      float64 // requests a second; 0: any number
	rateBurst      int     // 0: a second's
	trustedProxies networks
}

// addFlags adds the flags that set a.
func (a *serverFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&a.opsListen, "ops-listen", "", "`address` to serve /metrics, /debug/pprof, /healthz and /readyz on, for operators; --listen then serves no metrics and no profiles")
	flags.StringVar(&a.adminToken, "admin-token", "", "bearer `token` of administrators, at least 16 characters; without one, every caller on this machine is an administrator, and the service must listen on loopback")
	flags.Var((*authentication)(&a.jwt), "auth", "how buyers are authenticated: none (every caller may act for every buyer) or jwt (by a JSON Web Token whose sub is the buyer; needs --admin-token and --jwt-secret or --jwt-jwks)")
	flags.StringVar(&a.jwtSecret, "jwt-secret", "", "`secret` with which tokens are signed by HS256, at least 32 characters")
	flags.StringVar(&a.jwtKeys, "jwt-jwks", "", "`source` of the public keys of the tokens' issuer: the https URL or the file of a JSON Web Key Set")
	flags.StringVar(&a.jwtIssuer, "jwt-issuer", "", "`name` that tokens must have as iss; empty: any")
	flags.StringVar(&a.jwtAudience, "jwt-audience", "", "`name` that the aud of tokens must contain; empty: any")
	flags.StringVar(&a.tlsCert, "tls-cert", "", "PEM `file` of the certificate, to serve TLS 1.2 or later on --listen and --ops-listen; read again when it changes")
	flags.StringVar(&a.tlsKey, "tls-key", "", "PEM `file` of the certificate's private key")
	flags.Var((*perSecond)(&a.rateLimit), "rate-limit", "`number` of requests a second that one client, a buyer with a token or an address, may send; 0.5: one in two seconds; 0: any")
	flags.IntVar(&a.rateBurst, "rate-burst", 0, "`number` of requests that one client may send at once; 0: as --rate-limit")
	flags.Var(&a.trustedProxies, "trusted-proxies", "comma-separated addresses and `networks` of the proxies whose X-Forwarded-For names the client")
}

// check returns the first invalid flag or combination of flags.
func (a serverFlags) check() error {
	return cmp.Or(a.checkListeners(), a.checkTLS(), a.checkTokens(), a.checkRate())
}

// checkListeners checks the addresses, and that a token is set if other machines can
// reach one of them.
func (a serverFlags) checkListeners() error {
	err := a.checkListener("--listen", a.listen)
	if a.opsListen == "" {
		return err
	}
	err = cmp.Or(err, a.checkListener("--ops-listen", a.opsListen))
	if _, port, _ := net.SplitHostPort(a.listen); err == nil && a.opsListen == a.listen && port != "0" {
		err = usagef("--ops-listen: %s is the address of --listen", a.opsListen)
	}
	return err
}

func (a serverFlags) checkListener(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	switch {
	case err != nil || port == "":
		return usagef("%s: %q is not host:port, such as 127.0.0.1:8080", flag, address)
	case !isPort(port):
		return usagef("%s: %q has no port from 0 to 65535", flag, address)
	}
	if !onLoopback(address) && a.adminToken == "" {
		return usagef("--admin-token: required to listen on %s, which other machines can reach", address)
	}
	return nil
}

// isPort reports whether the text is the number of a port, or 0 for any free port.
func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// onLoopback reports whether only this machine can reach a listener on the address.
func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (a serverFlags) checkTLS() error {
	switch {
	case a.tlsCert != "" && a.tlsKey == "":
		return usagef("--tls-key: required with --tls-cert")
	case a.tlsKey != "" && a.tlsCert == "":
		return usagef("--tls-cert: required with --tls-key")
	}
	return nil
}

// checkTokens checks that buyers' tokens can be verified, if they are.
func (a serverFlags) checkTokens() error {
	if !a.jwt {
		return a.checkNoTokens()
	}
	switch {
	case a.adminToken == "":
		return usagef("--admin-token: required by --auth jwt, to tell administrators from buyers")
	case a.jwtSecret == "" && a.jwtKeys == "":
		return usagef("--auth: jwt needs --jwt-secret or --jwt-jwks")
	case a.jwtSecret != "" && a.jwtKeys != "":
		return usagef("--jwt-secret: not together with --jwt-jwks")
	case a.jwtSecret == a.adminToken:
		return usagef("--jwt-secret: must not be the admin token: the issuer of tokens is no administrator")
	case a.jwtSecret != "" && !isSecret(a.jwtSecret, token.MinSecret):
		return usagef("--jwt-secret: must be %d to %d visible ASCII characters, without spaces", token.MinSecret, maxToken)
	case a.jwtKeys != "":
		if err := token.CheckSource(a.jwtKeys); err != nil {
			return usagef("--jwt-jwks: %w", err)
		}
	}
	return nil
}

// checkNoTokens refuses the flags of tokens. Without --auth jwt they do nothing, and an
// operator who sets one believes that buyers are authenticated.
func (a serverFlags) checkNoTokens() error {
	for _, flag := range [][2]string{
		{"--jwt-secret", a.jwtSecret}, {"--jwt-jwks", a.jwtKeys}, {"--jwt-issuer", a.jwtIssuer}, {"--jwt-audience", a.jwtAudience},
	} {
		if flag[1] != "" {
			return usagef("%s: only with --auth jwt", flag[0])
		}
	}
	return nil
}

func (a serverFlags) checkRate() error {
	if a.rateBurst < 0 || a.rateBurst > maxRate {
		return usagef("--rate-burst: %d is not between 0 and %d", a.rateBurst, maxRate)
	}
	return nil
}

// scheme returns http or https.
func (a serverFlags) scheme() string {
	if a.tlsCert != "" {
		return "https"
	}
	return "http"
}

// burst returns how many requests a client may send at once.
func (a serverFlags) burst() int {
	return cmp.Or(a.rateBurst, int(math.Ceil(a.rateLimit)))
}

// perSecond is the value of --rate-limit.
type perSecond float64

func (p *perSecond) String() string { return strconv.FormatFloat(float64(*p), 'f', -1, 64) }

func (p *perSecond) Type() string { return "rate" }

func (p *perSecond) Set(s string) error {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n != 0 && !(n >= minRate && n <= maxRate) { // also NaN
		return fmt.Errorf("%q is neither 0 nor a number of requests a second from %v to %d, such as 50 or 0.5", s, minRate, maxRate)
	}
	*p = perSecond(n)
	return nil
}

// authentication is the value of --auth: none, or jwt for true.
type authentication bool

func (a *authentication) String() string {
	if *a {
		return "jwt"
	}
	return "none"
}

func (a *authentication) Type() string { return "method" }

func (a *authentication) Set(s string) error {
	switch s {
	case "none", "jwt":
		*a = s == "jwt"
		return nil
	}
	return fmt.Errorf("%q is not one of none, jwt", s)
}

// networks is the value of --trusted-proxies.
type networks []netip.Prefix

func (n *networks) String() string {
	texts := make([]string, len(*n))
	for i, network := range *n {
		texts[i] = network.String()
	}
	return strings.Join(texts, ",")
}

func (n *networks) Type() string { return "networks" }

func (n *networks) Set(s string) error {
	var all networks
	for text := range strings.SplitSeq(s, ",") {
		text = strings.TrimSpace(text)
		network, err := netip.ParsePrefix(text)
		if address, notNetwork := netip.ParseAddr(text); notNetwork == nil {
			address = address.Unmap()
			network, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		switch {
		case err != nil:
			return fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", text)
		case network.Addr().Is4In6(): // would match nobody
			return fmt.Errorf("%q is a network of IPv4 addresses: write it as one, such as 10.0.0.0/8", text)
		case network.Bits() == 0:
			return fmt.Errorf("%q trusts everybody: every client could claim to be another", text)
		}
		all = append(all, network.Masked())
	}
	*n = all
	return nil
}
