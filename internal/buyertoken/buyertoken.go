// Package buyertoken verifies the tokens of buyers: JSON Web Tokens (RFC 7519), signed
// with a secret that the service shares with their issuer, or with a key that the
// issuer publishes.
package buyertoken

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// MinSecret is the length of the shortest secret in bytes. RFC 7518 requires at least the length of
// the hash.
const MinSecret = 32

// leeway is how far the clocks of the issuer and of this machine may differ.
const leeway = 30 * time.Second

// maxDate bounds the dates of a token, in seconds before or after 1970. Sums of greater dates would
// overflow, so that a date far in the future would lie in the past.
const maxDate = math.MaxInt64 / 2

// The algorithms that a token may name. A Verifier knows only one of the lists. So a secret never
// verifies a token that a public key should verify, or the reverse.
var (
	secretAlgorithms = []jose.SignatureAlgorithm{jose.HS256}
	publicAlgorithms = []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
)

// Rules say which tokens are accepted among those that have a valid signature and have
// not expired.
type Rules struct {
	Issuer   string // the iss that a token must have; empty: any
	Audience string // what the aud of a token must contain; empty: anything
}

// Objection is the reason why a token is not valid, for the client. It completes
// "The token is not valid:".
type Objection string

func (o Objection) Error() string { return string(o) }

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	rules      Rules
	algorithms []jose.SignatureAlgorithm
	// keys returns the keys that may have signed a token that names this key ID.
	keys func(ctx context.Context, id string) ([]jose.JSONWebKey, error)
}

// WithSecret returns a Verifier of tokens that are signed with HS256. The secret must
// have at least MinSecret bytes.
func WithSecret(secret string, r Rules) *Verifier {
	keys := []jose.JSONWebKey{{Key: []byte(secret)}}
	return &Verifier{rules: r, algorithms: secretAlgorithms, keys: func(context.Context, string) ([]jose.JSONWebKey, error) { return keys, nil }}
}

// WithKeys returns a Verifier of tokens that are signed with one of the issuer's keys.
func WithKeys(k *Keys, r Rules) *Verifier {
	return &Verifier{rules: r, algorithms: publicAlgorithms, keys: k.find}
}

// Subject verifies a token and returns its sub, which is a valid buyer ID. A token
// must have an exp.
//
// Errors: an Objection; stock.ErrBusy if the issuer's keys are not known.
func (v *Verifier) Subject(ctx context.Context, token string) (string, error) {
	signed, err := jwt.ParseSigned(token, v.algorithms)
	if err != nil {
		return "", Objection("it is not a JSON Web Token that is signed with " + v.accepted())
	}
	header := signed.Headers[0]
	keys, err := v.keys(ctx, header.KeyID)
	if err != nil {
		return "", err
	}
	claims, dates, ok := verified(signed, keys, header.Algorithm)
	switch {
	case !ok:
		return "", Objection("its signature is not the issuer's, or its claims cannot be read")
	case !dates.inRange():
		return "", Objection("its exp, nbf or iat is out of range")
	}
	expected := jwt.Expected{Issuer: v.rules.Issuer, Time: time.Now()}
	if v.rules.Audience != "" {
		expected.AnyAudience = jwt.Audience{v.rules.Audience}
	}
	if err := claims.ValidateWithLeeway(expected, leeway); err != nil {
		return "", objection(err)
	}
	switch {
	case claims.Expiry == nil:
		return "", Objection("it has no exp")
	case !stock.ValidID(claims.Subject):
		return "", Objection("its sub is not a buyer ID")
	}
	return claims.Subject, nil
}

// dates are the dates of a token as they were sent. The library's claims have them as int64, so
// that a number that is too great wraps around.
type dates struct {
	Expiry    float64 `json:"exp"`
	NotBefore float64 `json:"nbf"`
	IssuedAt  float64 `json:"iat"`
}

func (d dates) inRange() bool {
	return math.Abs(d.Expiry) < maxDate && math.Abs(d.NotBefore) < maxDate && math.Abs(d.IssuedAt) < maxDate
}

// verified returns the claims of a token if one of the keys signed it. A key for one algorithm
// verifies no other algorithm.
func verified(signed *jwt.JSONWebToken, keys []jose.JSONWebKey, algorithm string) (claims jwt.Claims, sent dates, ok bool) {
	for _, key := range keys {
		if key.Algorithm != "" && key.Algorithm != algorithm {
			continue
		}
		claims, sent = jwt.Claims{}, dates{}
		if signed.Claims(key.Key, &claims, &sent) == nil {
			return claims, sent, true
		}
	}
	return jwt.Claims{}, dates{}, false
}

// accepted lists the algorithms for an error message.
func (v *Verifier) accepted() string {
	names := make([]string, len(v.algorithms))
	for i, a := range v.algorithms {
		names[i] = string(a)
	}
	return strings.Join(names, ", ")
}

// objection returns the library's reason in our words, because a client may read it.
func objection(err error) Objection {
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return "it has expired"
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return "it is not valid yet"
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return "its iss is another issuer"
	case errors.Is(err, jwt.ErrInvalidAudience):
		return "its aud is another service"
	}
	return "its claims are wrong"
}
