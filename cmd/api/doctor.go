package main

import (
	"context"
	"io"

	"github.com/holdfast-stock/holdfast/internal/doctor"
)

// examine checks the stores and addresses as an instance with these flags would use them, and
// prints the findings. It returns an error if there is a problem.
func examine(ctx context.Context, c config, stdout io.Writer) error {
	return doctor.Run(ctx, doctor.Options{
		Parts: c.parts(), TakeDeadline: c.TakeDeadline, DrainDelay: c.DrainDelay, RequestTimeout: requestTimeout,
		Listen: c.Listen, Public: !onLoopback(c.Listen), OpsListen: c.OpsListen,
		TLSCert: c.TLSCert, TLSKey: c.TLSKey, JWTKeys: c.JWTKeys, JWTAudience: c.JWTAudience,
		RateLimit: float64(c.RateLimit), RateBurst: c.RateBurst, TrustedProxies: c.TrustedProxies,
	}, c.JSON, stdout)
}
