package buyertoken

import (
	"bytes"
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// urlPause and filePause are the pauses between two reads of the keys from a URL or a file.
	// retryPause is the pause after a failed read.
	urlPause, filePause, retryPause = 5 * time.Minute, 10 * time.Second, 10 * time.Second
	// minPause is the shortest pause between two reads. It bounds the reads that tokens with
	// unknown keys cause, because anybody can send such tokens.
	minPause = 10 * time.Second
	// readTimeout bounds one read of the keys, and maxWait how long a token with an unknown key
	// waits for a read.
	readTimeout, maxWait = 5 * time.Second, 2 * time.Second
	// maxSet bounds the bytes of a set of keys, and maxKeys the number of its keys.
	maxSet, maxKeys = 256 << 10, 100
	// minRSA is the size of the smallest RSA key, in bits.
	minRSA = 2048
)

// Keys are the public keys of an issuer: a JSON Web Key Set (RFC 7517) at a URL or in a file. Run
// reads them again and again. While reading fails, the keys that were read last stay in use,
// without a time limit. Keys is safe for concurrent use.
type Keys struct {
	read  func(ctx context.Context) ([]byte, error)
	pause time.Duration // between two reads of the keys
	log   *slog.Logger
	set   atomic.Pointer[keySet] // nil until a read has succeeded

	mu      sync.Mutex
	reading bool
	ended   time.Time     // when the last read ended
	next    chan struct{} // closed at the end of the current read, or of the next one
	wanted  chan struct{} // has an element if Run should not wait any longer
}

// keySet holds the keys of one read.
type keySet struct {
	text []byte
	keys map[string][]jose.JSONWebKey // by key ID
}

// CheckSource returns an error if source is not a valid source of keys: a URL, or the path of a
// file. It does not read the source. A URL must be https, because anyone who can change the answer
// can make tokens. http is allowed for this machine only. The error contains no part of the source,
// which may have a password.
func CheckSource(source string) error {
	if !isURL(source) {
		return nil
	}
	u, err := url.Parse(source)
	switch {
	case err != nil, strings.HasPrefix(u.Scheme, "http") && u.Hostname() == "":
		return errors.New("the URL cannot be parsed")
	case u.Scheme == "https", u.Scheme == "http" && loopback(u.Hostname()):
		return nil
	}
	return errors.New("must be an https URL or the path of a file: anyone who can change the keys can make tokens")
}

func isURL(source string) bool { return strings.Contains(source, "://") }

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// OpenKeys returns the keys of a source that CheckSource accepts. It reads a file at once. A URL is
// read by Run: the service can start while the issuer does not answer.
func OpenKeys(ctx context.Context, source string, log *slog.Logger) (*Keys, error) {
	if isURL(source) {
		return newKeys(fetch(source), urlPause, log), nil
	}
	k := newKeys(readFile(source), filePause, log)
	return k, k.Load(ctx)
}

func newKeys(read func(context.Context) ([]byte, error), pause time.Duration, log *slog.Logger) *Keys {
	return &Keys{read: read, pause: pause, log: log, next: make(chan struct{}), wanted: make(chan struct{}, 1)}
}

// Ready returns an error until the keys have been read once.
func (k *Keys) Ready() error {
	if k.set.Load() == nil {
		return fmt.Errorf("%w: the keys of the tokens' issuer have not been read yet", stock.ErrBusy)
	}
	return nil
}

// Run reads the keys until ctx ends.
func (k *Keys) Run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := k.pause
		if err := k.Load(ctx); err != nil {
			pause = retryPause
			if ctx.Err() == nil {
				k.log.Warn("the keys of the tokens' issuer cannot be read; those that were read last stay in use", "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-k.wanted:
		}
	}
}

// Load reads the keys once, for at most 5 s.
func (k *Keys) Load(ctx context.Context) error {
	k.begin()
	defer k.end()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	text, err := k.read(ctx)
	if err != nil {
		return err
	}
	if last := k.set.Load(); last != nil && bytes.Equal(last.text, text) {
		return nil
	}
	keys, err := parse(text)
	if err != nil {
		return err
	}
	k.set.Store(&keySet{text, keys})
	k.log.Info("the keys of the tokens' issuer were read", "key_ids", k.IDs())
	return nil
}

// IDs returns the IDs of the keys that were read last, sorted. The IDs are text from the issuer.
func (k *Keys) IDs() []string {
	set := k.set.Load()
	if set == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(set.keys))
}

func (k *Keys) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reading = true
	select {
	case <-k.wanted: // the requested read starts now
	default:
	}
}

func (k *Keys) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reading, k.ended = false, time.Now()
	close(k.next)
	k.next = make(chan struct{})
}

// find returns the keys with the ID. A token without a key ID can only be meant for the only key.
// The issuer may have new keys, so an unknown ID waits for a read.
//
// Errors: an Objection; stock.ErrBusy if no keys have been read yet.
func (k *Keys) find(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	found := k.known(id)
	if found == nil {
		k.reread(ctx)
		found = k.known(id)
	}
	if found == nil {
		if err := k.Ready(); err != nil {
			return nil, err
		}
		return nil, Objection("its kid is not the ID of a key of the issuer")
	}
	return found, nil
}

func (k *Keys) known(id string) []jose.JSONWebKey {
	set := k.set.Load()
	if set == nil {
		return nil
	}
	if id == "" && len(set.keys) == 1 {
		for _, only := range set.keys {
			return only
		}
	}
	return set.keys[id]
}

// reread waits for a read of the keys, for at most maxWait. It returns at once if one has just
// ended.
func (k *Keys) reread(ctx context.Context) {
	k.mu.Lock()
	next := k.next
	due := time.Since(k.ended) >= minPause
	if !k.reading && due {
		select {
		case k.wanted <- struct{}{}:
		default:
		}
	}
	wait := k.reading || due
	k.mu.Unlock()
	if !wait {
		return
	}
	select {
	case <-next:
	case <-ctx.Done():
	case <-time.After(maxWait):
	}
}

// parse returns the keys of a set that can verify tokens, by ID. It ignores the
// others, as RFC 7517 recommends: secret keys, keys for encryption, keys that are too
// short and keys of kinds that it does not know.
func parse(text []byte) (map[string][]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
		URI  string            `json:"jwks_uri"`
	}
	switch err := json.Unmarshal(text, &set); {
	case err != nil:
		return nil, fmt.Errorf("parsing the JSON Web Key Set: %w", err)
	case set.Keys == nil && set.URI != "":
		return nil, errors.New("it is the issuer's discovery document; use its jwks_uri instead")
	case set.Keys == nil:
		return nil, errors.New(`it is not a JSON Web Key Set, which is {"keys":[…]}`)
	case len(set.Keys) > maxKeys:
		return nil, fmt.Errorf("the set has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	keys := make(map[string][]jose.JSONWebKey)
	for _, one := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(one) == nil && usable(key) {
			keys[key.KeyID] = append(keys[key.KeyID], key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("none of the %d keys of the set is a public key for signatures", len(set.Keys))
	}
	return keys, nil
}

// usable reports whether the key can verify tokens.
func usable(key jose.JSONWebKey) bool {
	if public, ok := key.Key.(*rsa.PublicKey); ok && public.N.BitLen() < minRSA {
		return false
	}
	return key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig")
}

// fetch returns a function that reads a URL. It follows no redirect: the URL is trusted, but the
// target of a redirect is not.
func fetch(source string) func(context.Context) ([]byte, error) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return func(ctx context.Context) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Accept", "application/jwk-set+json, application/json")
		response, err := client.Do(r)
		if err != nil {
			if inner, ok := errors.AsType[*url.Error](err); ok {
				err = inner.Err // without the URL, whose query may have a password
			}
			return nil, fmt.Errorf("reading the set of keys: %w", err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("reading the set of keys: %s", response.Status)
		}
		return readAll(response.Body)
	}
}

func readFile(name string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readAll(f)
	}
}

// readAll reads a set of keys that is not too large.
func readAll(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSet+1))
	if err == nil && len(text) > maxSet {
		err = fmt.Errorf("the set of keys is larger than %d bytes", maxSet)
	}
	return text, err
}
