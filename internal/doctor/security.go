package doctor

import (
	"context"
	"crypto/x509"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/buyertoken"
	"github.com/holdfast-stock/holdfast/internal/certificate"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// checkSecurity checks the certificate and the keys of buyers' tokens, and warns of flags that leave
// something unprotected.
func (e *examination) checkSecurity(ctx context.Context) (found store.Findings) {
	log := slog.New(slog.DiscardHandler)
	o := e.o
	if o.TLSCert != "" {
		pair, err := certificate.Open(o.TLSCert, o.TLSKey, log)
		if err != nil {
			found.Problem("check --tls-cert and --tls-key", "%v", err)
		} else {
			found = append(found, judgeCertificate(pair.Leaf(), time.Now())...)
		}
	}
	if o.JWTKeys != "" {
		found = append(found, checkKeys(ctx, o.JWTKeys, log)...)
	}
	if o.JWTKeys != "" && o.JWTAudience == "" {
		found.Warn("set --jwt-audience", "tokens that the issuer made for other services are accepted too")
	}
	switch {
	case o.RateLimit == 0 && (o.RateBurst > 0 || len(o.TrustedProxies) > 0):
		found.Warn("set --rate-limit", "--rate-burst and --trusted-proxies do nothing without a rate limit")
	case o.RateLimit > 0 && o.OpsListen == "" && o.Public:
		found.Warn("set --ops-listen", "/metrics is on --listen, where --rate-limit does not bound it, and costs more than an order")
	}
	return found
}

// judgeCertificate reports why clients refuse a certificate. It does not judge its names
// and its authority, because only clients know which they expect.
func judgeCertificate(leaf *x509.Certificate, now time.Time) (found store.Findings) {
	server := func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageServerAuth || usage == x509.ExtKeyUsageAny
	}
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	left := leaf.NotAfter.Sub(now)
	switch {
	case left < 0:
		found.Problem("renew it", "the TLS certificate expired at %v", leaf.NotAfter)
	case now.Before(leaf.NotBefore):
		found.Problem("check this machine's clock, or use another certificate", "the TLS certificate is not valid before %v", leaf.NotBefore)
	case left < leaf.NotAfter.Sub(leaf.NotBefore)/10:
		found.Warn("renew it", "the TLS certificate expires at %v, in %v", leaf.NotAfter, left.Round(time.Minute))
	}
	if len(names) == 0 {
		found.Problem("have it issued with a subjectAltName", "the TLS certificate names no host: clients refuse it")
	}
	if len(leaf.ExtKeyUsage) > 0 && !slices.ContainsFunc(leaf.ExtKeyUsage, server) {
		found.Problem("have it issued for servers (serverAuth)", "the TLS certificate is not for servers: clients refuse it")
	}
	if len(found) == 0 {
		found.OK("the TLS certificate of %s is valid until %v", strings.Join(names, ", "), leaf.NotAfter)
	}
	return found
}

// checkKeys reports whether the keys of buyers' tokens can be read.
func checkKeys(ctx context.Context, source string, log *slog.Logger) (found store.Findings) {
	keys, err := buyertoken.OpenKeys(ctx, source, log)
	if err == nil {
		err = keys.Load(ctx)
	}
	if err != nil {
		found.Problem("check --jwt-jwks and its issuer; a private certificate authority goes into SSL_CERT_FILE", "--jwt-jwks: %v", err)
		return found
	}
	found.OK("--jwt-jwks has keys with these IDs: %q", keys.IDs())
	return found
}
