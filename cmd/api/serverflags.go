package main

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/buyertoken"
	"github.com/holdfast-stock/holdfast/internal/commandline"
)

// minRate and maxRate bound --rate-limit, unless it is 0, and maxRate --rate-burst. No instance
// reaches maxRate.
const minRate, maxRate = 0.001, 1_000_000

// serverFlags are the flags of the HTTP server: where it listens, who can reach it, and
// who may do what.
type serverFlags struct {
	AdminToken     string    `placeholder:"TOKEN" help:"Bearer token of administrators, at least 16 characters; without one, every caller on this machine is an administrator, and the service must listen on loopback."`
	Auth           string    `default:"none" enum:"none, jwt" help:"How buyers are authenticated: none (every caller may act for every buyer) or jwt (by a JSON Web Token whose sub is the buyer; needs --admin-token and --jwt-secret or --jwt-jwks)."`
	JWTSecret      string    `placeholder:"SECRET" help:"Secret with which tokens are signed by HS256, at least 32 characters."`
	JWTKeys        string    `name:"jwt-jwks" placeholder:"SOURCE" help:"Public keys of the tokens' issuer: the https URL or the file of a JSON Web Key Set."`
	JWTIssuer      string    `placeholder:"NAME" help:"Name that tokens must have as iss; empty: any."`
	JWTAudience    string    `placeholder:"NAME" help:"Name that the aud of tokens must contain; empty: any."`
	TLSCert        string    `placeholder:"FILE" help:"PEM file of the certificate, to serve TLS 1.2 or later on --listen and --ops-listen; read again when it changes."`
	TLSKey         string    `placeholder:"FILE" help:"PEM file of the certificate's private key."`
	RateLimit      perSecond `default:"0" help:"Requests a second that one client may send; 0.5: one in two seconds; 0: no limit."`
	RateBurst      int       `default:"0" help:"Requests that one client may send at once; 0: as --rate-limit."`
	TrustedProxies networks  `placeholder:"NETWORKS" help:"Comma-separated addresses and networks of the proxies whose X-Forwarded-For names the client."`

	Listen    string `group:"The process:" default:"127.0.0.1:8080" help:"Address to serve on."`
	OpsListen string `group:"The process:" placeholder:"ADDRESS" help:"Address to serve /metrics, /debug/pprof, /healthz and /readyz on, for operators; --listen then serves no metrics and no profiles."`
}

// check returns the first invalid flag or combination of flags.
func (a serverFlags) check() error {
	return cmp.Or(a.checkListeners(), a.checkTLS(), a.checkTokens(), a.checkRate())
}

// checkListeners checks the addresses, and that a token is set if other machines can
// reach one of them.
func (a serverFlags) checkListeners() error {
	err := a.checkListener("--listen", a.Listen)
	if a.OpsListen == "" {
		return err
	}
	err = cmp.Or(err, a.checkListener("--ops-listen", a.OpsListen))
	if _, port, _ := net.SplitHostPort(a.Listen); err == nil && a.OpsListen == a.Listen && port != "0" {
		err = fmt.Errorf("--ops-listen: %s is the address of --listen", a.OpsListen)
	}
	return err
}

func (a serverFlags) checkListener(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	switch {
	case err != nil || port == "":
		return fmt.Errorf("%s: %q is not host:port, such as 127.0.0.1:8080", flag, commandline.CutURL(address))
	case !isPort(port):
		return fmt.Errorf("%s: %q has no port from 0 to 65535", flag, commandline.CutURL(address))
	}
	if !onLoopback(address) && a.AdminToken == "" {
		return fmt.Errorf("--admin-token: required to listen on %s, which other machines can reach", address)
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
	case a.TLSCert != "" && a.TLSKey == "":
		return fmt.Errorf("--tls-key: required with --tls-cert")
	case a.TLSKey != "" && a.TLSCert == "":
		return fmt.Errorf("--tls-cert: required with --tls-key")
	}
	return nil
}

// checkTokens checks that buyers' tokens can be verified if --auth is jwt, and that no flag of
// tokens is set otherwise.
func (a serverFlags) checkTokens() error {
	if a.Auth != "jwt" {
		return a.checkNoTokens()
	}
	switch {
	case a.AdminToken == "":
		return fmt.Errorf("--admin-token: required by --auth jwt, to tell administrators from buyers")
	case a.JWTSecret == "" && a.JWTKeys == "":
		return fmt.Errorf("--auth: jwt needs --jwt-secret or --jwt-jwks")
	case a.JWTSecret != "" && a.JWTKeys != "":
		return fmt.Errorf("--jwt-secret: cannot be used with --jwt-jwks")
	case a.JWTSecret == a.AdminToken:
		return fmt.Errorf("--jwt-secret: must not be the admin token: the issuer of tokens is no administrator")
	case a.JWTSecret != "" && !isSecret(a.JWTSecret, buyertoken.MinSecret):
		return fmt.Errorf("--jwt-secret: must be %d to %d visible ASCII characters, without spaces", buyertoken.MinSecret, maxToken)
	case a.JWTKeys != "":
		if err := buyertoken.CheckSource(a.JWTKeys); err != nil {
			return fmt.Errorf("--jwt-jwks: %w", err)
		}
	}
	return nil
}

// checkNoTokens refuses the flags of tokens. Without --auth jwt they have no effect, but an
// operator who sets one expects that buyers are authenticated.
func (a serverFlags) checkNoTokens() error {
	for _, flag := range [][2]string{
		{"--jwt-secret", a.JWTSecret}, {"--jwt-jwks", a.JWTKeys}, {"--jwt-issuer", a.JWTIssuer}, {"--jwt-audience", a.JWTAudience},
	} {
		if flag[1] != "" {
			return fmt.Errorf("%s: only with --auth jwt", flag[0])
		}
	}
	return nil
}

func (a serverFlags) checkRate() error {
	if a.RateBurst < 0 || a.RateBurst > maxRate {
		return fmt.Errorf("--rate-burst: %d is not between 0 and %d", a.RateBurst, maxRate)
	}
	return nil
}

// scheme returns http or https.
func (a serverFlags) scheme() string {
	if a.TLSCert != "" {
		return "https"
	}
	return "http"
}

// burst returns how many requests a client may send at once.
func (a serverFlags) burst() int {
	return cmp.Or(a.RateBurst, int(math.Ceil(float64(a.RateLimit))))
}

// perSecond is the value of --rate-limit.
type perSecond float64

// UnmarshalText sets p.
func (p *perSecond) UnmarshalText(text []byte) error {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || n != 0 && !(n >= minRate && n <= maxRate) { // also NaN
		return fmt.Errorf("%q is neither 0 nor a number of requests a second from %v to %d, such as 50 or 0.5", text, minRate, maxRate)
	}
	*p = perSecond(n)
	return nil
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

// UnmarshalText sets n.
func (n *networks) UnmarshalText(list []byte) error {
	var all networks
	for text := range strings.SplitSeq(string(list), ",") {
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
			return fmt.Errorf("%q is an IPv4 network in the form of IPv6: write it as an IPv4 network, such as 10.0.0.0/8", text)
		case network.Bits() == 0:
			return fmt.Errorf("%q trusts everybody: every client could claim to be another", text)
		}
		all = append(all, network.Masked())
	}
	*n = all
	return nil
}
