package main

import (
	"context"
	"io"

	"github.com/holdfast-stock/holdfast/internal/doctor"
)

// examine checks what an instance with these flags would find, and prints it. It returns
// an error if there is a problem.
func examine(ctx context.Context, c config, stdout io.Writer) error {
	return doctor.Run(ctx, doctor.Options{
		Parts: c.parts(), TakeDeadline: c.takeDeadline, DrainDelay: c.drainDelay, RequestTimeout: requestTimeout,
		Listen: c.listen, Public: !onLoopback(c.listen), OpsListen: c.opsListen,
		TLSCert: c.tlsCert, TLSKey: c.tlsKey, JWTKeys: c.jwtKeys, JWTAudience: c.jwtAudience,
		RateLimit: c.rateLimit, RateBurst: c.rateBurst, TrustedProxies: c.trustedProxies,
	}, c.json, stdout)
}
