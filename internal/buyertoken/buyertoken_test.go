package buyertoken

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const secret = "0123456789abcdef0123456789abcdef"

// claims are the claims of a valid token, with changes. A nil value removes a claim.
func claims(changes ...map[string]any) map[string]any {
	all := map[string]any{"sub": "u-1", "exp": time.Now().Add(time.Hour).Unix(), "iss": "https://issuer.test", "aud": []string{"shop", "other"}}
	for _, c := range changes {
		maps.Copy(all, c)
	}
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

// sign returns a signed token with the claims. An empty id names no key.
func sign(t testing.TB, algorithm jose.SignatureAlgorithm, key any, id string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// forge returns a token with any header. mac is the key of an HMAC with SHA-256. A nil mac leaves
// out the signature.
func forge(t testing.TB, header map[string]any, mac []byte, claims map[string]any) string {
	t.Helper()
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(header) + "." + part(claims)
	if mac == nil {
		return signed + "."
	}
	hash := hmac.New(sha256.New, mac)
	hash.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(hash.Sum(nil))
}

// expect checks the answer of Subject: a buyer, or an objection that contains says.
func expect(t *testing.T, v *Verifier, token, buyer, says string) {
	t.Helper()
	got, err := v.Subject(t.Context(), token)
	if says == "" {
		if err != nil || got != buyer {
			t.Errorf("%q, %v, want %q", got, err, buyer)
		}
		return
	}
	if got != "" || !errors.As(err, new(Objection)) || !strings.Contains(err.Error(), says) {
		t.Errorf("%q, %v, want an objection with %q", got, err, says)
	}
}

// TestSecret checks the claims, and that only HS256 with the secret counts as signed.
func TestSecret(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rules := Rules{Issuer: "https://issuer.test", Audience: "shop"}
	hs256 := func(changes map[string]any) string { return sign(t, jose.HS256, []byte(secret), "", claims(changes)) }
	none := func(header map[string]any) string { return forge(t, header, nil, claims()) }
	for _, test := range []struct {
		name, token, says string
	}{
		{"good", hs256(nil), ""},
		{"a single audience", hs256(map[string]any{"aud": "shop"}), ""},
		{"just expired", hs256(map[string]any{"exp": now.Add(-10 * time.Second).Unix()}), ""},
		{"expired", hs256(map[string]any{"exp": now.Add(-time.Minute).Unix()}), "expired"},
		{"no exp", hs256(map[string]any{"exp": nil}), "exp"},
		{"exp as a text", hs256(map[string]any{"exp": "2999-01-01"}), "signature"},
		{"not before, in a moment", hs256(map[string]any{"nbf": now.Add(10 * time.Second).Unix()}), ""},
		{"not before", hs256(map[string]any{"nbf": now.Add(time.Minute).Unix()}), "not valid yet"},
		{"issued in the future", hs256(map[string]any{"iat": now.Add(time.Minute).Unix()}), "not valid yet"},
		{"not before a time beyond int64", hs256(map[string]any{"nbf": json.RawMessage("9223372036854775808")}), "out of range"},
		{"not before a time whose sum overflows", hs256(map[string]any{"nbf": json.RawMessage("9223372036854775000")}), "out of range"},
		{"issued far beyond int64", hs256(map[string]any{"iat": json.RawMessage("1e300")}), "out of range"},
		{"issued beyond every number", hs256(map[string]any{"iat": json.RawMessage("1e400")}), "signature"},
		{"issued long before int64", hs256(map[string]any{"iat": json.RawMessage("-1e300")}), "out of range"},
		{"expires beyond int64", hs256(map[string]any{"exp": json.RawMessage("9223372036854775808")}), "out of range"},
		{"expires in a million years", hs256(map[string]any{"exp": json.RawMessage("31556952000000")}), ""},
		{"dates with fractions", hs256(map[string]any{"iat": 1.5, "nbf": 2.5}), ""},
		{"another issuer", hs256(map[string]any{"iss": "https://issuer.test/"}), "iss"},
		{"no issuer", hs256(map[string]any{"iss": nil}), "iss"},
		{"another audience", hs256(map[string]any{"aud": []string{"shop2"}}), "aud"},
		{"no audience", hs256(map[string]any{"aud": nil}), "aud"},
		{"no subject", hs256(map[string]any{"sub": nil}), "sub"},
		{"a subject that is no buyer ID", hs256(map[string]any{"sub": "a b"}), "sub"},
		{"a subject that is no text", hs256(map[string]any{"sub": 1}), "signature"},
		{"another secret", sign(t, jose.HS256, []byte(strings.ToUpper(secret)), "", claims()), "signature"},
		{"HS384", sign(t, jose.HS384, []byte(secret+secret), "", claims()), "HS256"},
		{"HS512 with the secret", sign(t, jose.HS512, []byte(secret+secret), "", claims()), "HS256"},
		{"alg none", none(map[string]any{"alg": "none", "typ": "JWT"}), "HS256"},
		{"alg None", none(map[string]any{"alg": "None"}), "HS256"},
		{"no alg", none(map[string]any{"typ": "JWT"}), "HS256"},
		{"no signature", none(map[string]any{"alg": "HS256"}), "signature"},
		{"a header that must be understood", forge(t, map[string]any{"alg": "HS256", "crit": []string{"x"}, "x": 1}, []byte(secret), claims()), "signature"},
		{"a changed payload", strings.Replace(hs256(nil), ".", ".e30", 1), "signature"},
		{"no token", "x", "HS256"},
		{"three dots", "...", "HS256"},
		{"a very long token", strings.Repeat("a.", 10_000), "HS256"},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect(t, WithSecret(secret, rules), test.token, "u-1", test.says)
		})
	}
	// HS512 with a secret that is long enough for it.
	long := secret + secret
	expect(t, WithSecret(long, rules), sign(t, jose.HS512, []byte(long), "", claims()), "", "HS256")
	// Without rules, any issuer and audience is accepted.
	expect(t, WithSecret(secret, Rules{}), hs256(map[string]any{"iss": "x", "aud": nil}), "u-1", "")
}

// issuer has the private keys of an issuer.
type issuer struct {
	rsa, rsa2, short *rsa.PrivateKey
	ec               *ecdsa.PrivateKey
	ed               ed25519.PrivateKey
}

func newIssuer(t testing.TB) (i issuer) {
	t.Helper()
	var errs [5]error
	i.rsa, errs[0] = rsa.GenerateKey(rand.Reader, 2048)
	i.rsa2, errs[1] = rsa.GenerateKey(rand.Reader, 2048)
	i.short, errs[2] = rsa.GenerateKey(rand.Reader, 1024)
	i.ec, errs[3] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, i.ed, errs[4] = ed25519.GenerateKey(rand.Reader)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return i
}

// set returns a set with the public keys, and with the given other members unchanged.
func set(t testing.TB, keys []jose.JSONWebKey, more ...string) []byte {
	t.Helper()
	for _, key := range keys {
		text, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		more = append(more, string(text))
	}
	return []byte(`{"keys":[` + strings.Join(more, ",") + `]}`)
}

func public(id, algorithm, use string, key crypto.Signer) jose.JSONWebKey {
	return jose.JSONWebKey{KeyID: id, Algorithm: algorithm, Use: use, Key: key.Public()}
}

// keysIn writes a key set to a file, and returns its keys.
func keysIn(t testing.TB, text []byte) *Keys {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenKeys(t.Context(), file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestPublicKeys checks which key verifies which token, and that a public key never
// serves as a secret.
func TestPublicKeys(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	v := WithKeys(keysIn(t, set(t, []jose.JSONWebKey{
		public("r", "RS256", "sig", i.rsa), public("any", "", "", i.rsa2), public("e", "", "sig", i.ec), public("d", "", "", i.ed),
		public("enc", "", "enc", i.rsa), public("short", "", "sig", i.short),
		{KeyID: "oct", Key: []byte(secret)}, {KeyID: "private", Key: i.rsa},
	}, `{"kty":"unknown","kid":"new"}`, `7`)), Rules{})
	der, err := x509.MarshalPKIXPublicKey(i.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	own, err := json.Marshal(public("r", "RS256", "sig", i.rsa2))
	if err != nil {
		t.Fatal(err)
	}
	good := claims()
	for _, test := range []struct {
		name, token, says string
	}{
		{"RSA", sign(t, jose.RS256, i.rsa, "r", good), ""},
		{"RSA-PSS", sign(t, jose.PS384, i.rsa2, "any", good), ""},
		{"elliptic curve", sign(t, jose.ES256, i.ec, "e", good), ""},
		{"Ed25519", sign(t, jose.EdDSA, i.ed, "d", good), ""},
		{"expired", sign(t, jose.ES256, i.ec, "e", claims(map[string]any{"exp": 1})), "expired"},
		{"another algorithm than the key's", sign(t, jose.PS256, i.rsa, "r", good), "signature"},
		{"another key than it names", sign(t, jose.RS256, i.rsa2, "r", good), "signature"},
		{"another kind of key than it names", sign(t, jose.RS256, i.rsa, "e", good), "signature"},
		{"an unknown key", sign(t, jose.RS256, i.rsa, "x", good), "kid"},
		{"a key ID that is no text", forge(t, map[string]any{"alg": "RS256", "kid": []string{"r"}}, text, good), "RS256"},
		{"a key ID that is a path", sign(t, jose.RS256, i.rsa, "../r", good), "kid"},
		{"a key at a URL in the header", forge(t, map[string]any{"alg": "RS256", "kid": "x", "jku": "https://evil.test/keys", "x5u": "https://evil.test/cert"}, text, good), "kid"},
		{"no key ID, of several keys", sign(t, jose.RS256, i.rsa, "", good), "kid"},
		{"a key for encryption", sign(t, jose.RS256, i.rsa, "enc", good), "kid"},
		{"a short key", sign(t, jose.RS256, i.short, "short", good), "kid"},
		{"a secret key of the set", sign(t, jose.HS256, []byte(secret), "oct", good), "RS256"},
		{"a private key of the set", sign(t, jose.RS256, i.rsa, "private", good), "kid"},
		{"its own key in the header", forge(t, map[string]any{"alg": "RS256", "kid": "x", "jwk": json.RawMessage(own)}, text, good), "kid"},
		{"alg none", forge(t, map[string]any{"alg": "none", "kid": "r"}, nil, good), "RS256"},
		{"HS256 with the public key as PEM", forge(t, map[string]any{"alg": "HS256", "kid": "r"}, text, good), "RS256"},
		{"HS256 with the public key as DER", forge(t, map[string]any{"alg": "HS256", "kid": "r"}, der, good), "RS256"},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, v, test.token, "u-1", test.says) })
	}
	// If there is only one key, a token need not name it.
	expect(t, WithKeys(keysIn(t, set(t, []jose.JSONWebKey{public("r", "", "", i.rsa)})), Rules{}), sign(t, jose.RS256, i.rsa, "", good), "u-1", "")
}

func BenchmarkSubject(b *testing.B) {
	i := newIssuer(b)
	v := WithKeys(keysIn(b, set(b, []jose.JSONWebKey{public("e", "", "", i.ec), public("r", "", "", i.rsa)})), Rules{})
	for name, token := range map[string]string{
		"HS256": sign(b, jose.HS256, []byte(secret), "", claims()),
		"ES256": sign(b, jose.ES256, i.ec, "e", claims()),
		"RS256": sign(b, jose.RS256, i.rsa, "r", claims()),
	} {
		by := v
		if name == "HS256" {
			by = WithSecret(secret, Rules{})
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := by.Subject(b.Context(), token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
