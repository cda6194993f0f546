package buyertoken

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

func TestCheckSource(t *testing.T) {
	t.Parallel()
	for source, good := range map[string]bool{
		"keys.json":                    true,
		"/etc/holdfast/keys.json":      true,
		"https://issuer.test/keys":     true,
		"http://localhost:8080/keys":   true,
		"http://127.0.0.1/keys":        true,
		"http://[::1]:1/keys":          true,
		"http://issuer.test/keys":      false,
		"http://localhost.evil.test/k": false,
		"http://10.0.0.1/keys":         false,
		"ftp://issuer.test/keys":       false,
		"https:///keys":                false,
		"https://a b/keys":             false,
		"://":                          false,
	} {
		err := CheckSource(source)
		if (err == nil) != good {
			t.Errorf("%s: %v", source, err)
		}
		if err != nil && strings.Contains(err.Error(), "keys.") {
			t.Errorf("the error contains the source: %v", err)
		}
	}
}

// TestRefusedSets checks that an unusable set is an error, and that the keys read before stay in
// use.
func TestRefusedSets(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, says string }{
		"no JSON":              {"<html>", "JSON Web Key Set"},
		"an empty set":         {`{"keys":[]}`, "none of the 0 keys"},
		"no set":               {`{}`, `{"keys":[…]}`},
		"a key instead":        {`{"kty":"RSA","n":"AAAA","e":"AQAB"}`, `{"keys":[…]}`},
		"a discovery document": {`{"issuer":"https://issuer.test","jwks_uri":"https://issuer.test/keys"}`, "jwks_uri"},
		"only a secret":        {`{"keys":[{"kty":"oct","k":"AAAA","kid":"x"}]}`, "none of the 1 keys"},
		"too many keys":        {`{"keys":[` + strings.Repeat("1,", maxKeys) + `1]}`, "101 keys, more than 100"},
		"too many bytes":       {strings.Repeat(" ", maxSet) + `{"keys":[]}`, "larger"},
		"nothing":              {"", "JSON Web Key Set"},
		"a key off its curve":  {`{"keys":[{"kty":"EC","crv":"P-256","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}`, "none of"},
	} {
		file := filepath.Join(t.TempDir(), "keys.json")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenKeys(t.Context(), file, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
	if _, err := OpenKeys(t.Context(), filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file that does not exist: no error")
	}
}

// TestFetch checks which answers are accepted as key sets.
func TestFetch(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good := set(t, []jose.JSONWebKey{public("r", "", "", i.rsa)})
	var elsewhere atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
			_, _ = w.Write(good)
		case "/moved":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "/elsewhere":
			elsewhere.Add(1)
			_, _ = w.Write(good)
		case "/endless":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		case "/silent":
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write(good)
		}
	}))
	defer server.Close()
	for path, says := range map[string]string{"good": "", "moved": "302", "endless": "larger", "failed": "500"} {
		k, err := OpenKeys(t.Context(), server.URL+"/"+path, slog.New(slog.DiscardHandler))
		if err == nil {
			err = k.Load(t.Context())
		}
		if says == "" && (err != nil || k.Ready() != nil) {
			t.Errorf("%s: %v", path, err)
		}
		if says != "" && (err == nil || !strings.Contains(err.Error(), says) || k.Ready() == nil) {
			t.Errorf("%s: %v, want %q", path, err, says)
		}
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
	k, err := OpenKeys(t.Context(), "http://user:hidden@127.0.0.1:1/keys?apikey=hidden", slog.New(slog.DiscardHandler))
	if err == nil {
		err = k.Load(t.Context())
	}
	if err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("an issuer that is gone: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := fetch(server.URL + "/silent")(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent issuer: %v", err)
	}
}

// source is an issuer whose answers a test sets. It runs in a bubble.
type source struct {
	mu     sync.Mutex
	answer answer
	reads  int
}

// answer is the answer of an issuer, with its delay.
type answer struct {
	text  []byte
	err   error
	takes time.Duration
}

func (s *source) set(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = a
}

// readings returns how often the keys have been read.
func (s *source) readings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *source) read(ctx context.Context) ([]byte, error) {
	s.mu.Lock()
	s.reads++
	a := s.answer
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(a.takes):
		return a.text, a.err
	}
}

// TestKeysOverTime checks that new keys are found, and that the last keys stay in use while the
// issuer does not answer. Tokens with unknown keys must cause few reads and short waits.
func TestKeysOverTime(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	one := set(t, []jose.JSONWebKey{public("1", "", "", i.rsa)})
	two := set(t, []jose.JSONWebKey{public("2", "", "", i.rsa2)})
	synctest.Test(t, func(t *testing.T) {
		from := &source{answer: answer{err: errors.New("the issuer is unreachable")}}
		k := newKeys(from.read, urlPause, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.Run(ctx) }()
		defer func() { stop(); <-ended }()
		find := func(id string) error {
			_, err := k.find(t.Context(), id)
			return err
		}
		check := func(what string, err error, want bool) {
			t.Helper()
			if want && err != nil || !want && !errors.As(err, new(Objection)) {
				t.Errorf("%s: %v", what, err)
			}
		}

		synctest.Wait()
		if err := find("1"); !errors.Is(err, stock.ErrBusy) || !errors.Is(k.Ready(), stock.ErrBusy) {
			t.Errorf("before the first reading: %v, %v", err, k.Ready())
		}
		from.set(answer{text: one})
		time.Sleep(retryPause + time.Second)
		check("the issuer is back", find("1"), true)

		// The issuer changes its keys. The first token that names the new key waits for it, and the
		// old key is no longer known.
		time.Sleep(time.Minute)
		from.set(answer{text: two})
		check("a new key", find("2"), true)
		check("an old key", find("1"), false)

		// Unknown keys cause a read at most every minPause.
		time.Sleep(time.Minute)
		before := from.readings()
		for range 600 {
			check("an unknown key", find("x"), false)
			time.Sleep(100 * time.Millisecond)
		}
		if reads := from.readings() - before; reads < 2 || reads > 7 {
			t.Errorf("%d readings in a minute of unknown keys", reads)
		}

		// The issuer does not answer for a day.
		from.set(answer{text: two, takes: 48 * time.Hour})
		time.Sleep(24 * time.Hour)
		start := time.Now()
		check("a known key", find("2"), true)
		if time.Since(start) != 0 {
			t.Error("a token with a known key waits for the issuer")
		}
		for range 100 {
			time.Sleep(700 * time.Millisecond)
			start = time.Now()
			check("an unknown key", find("x"), false)
			if took := time.Since(start); took > maxWait {
				t.Errorf("a token with an unknown key waits for %v", took)
			}
		}
		// A broken set does not replace the keys.
		from.set(answer{text: []byte("{}")})
		time.Sleep(time.Hour)
		check("a known key after a broken set", find("2"), true)
	})
}

// TestRun checks that a failed read is repeated soon, that keys that have not changed are not logged,
// and that the end of the instance is not logged as a failure.
func TestRun(t *testing.T) {
	t.Parallel()
	keys := set(t, []jose.JSONWebKey{public("1", "", "", newIssuer(t).rsa)})
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		from := &source{answer: answer{err: errors.New("the issuer is unreachable")}}
		k := newKeys(from.read, urlPause, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.Run(ctx) }()
		check := func(reads, failed, changed int) {
			t.Helper()
			synctest.Wait()
			if n := from.readings(); n != reads {
				t.Errorf("%d reads, want %d", n, reads)
			}
			if f, c := strings.Count(log.String(), "cannot be read"), strings.Count(log.String(), "were read\" key_ids=[1]"); f != failed || c != changed {
				t.Errorf("%d failures and %d changes are logged, want %d and %d: %s", f, c, failed, changed, &log)
			}
		}
		check(1, 1, 0)
		from.set(answer{text: keys})
		time.Sleep(retryPause)
		check(2, 1, 1)
		time.Sleep(2 * urlPause)
		check(4, 1, 1)
		from.set(answer{takes: time.Hour})
		time.Sleep(urlPause)
		check(5, 1, 1)
		stop()
		<-ended
		check(5, 1, 1)
	})
}

// TestFind_DuringARead checks that tokens wait for the read under way, unless their requests have ended,
// and cause no other read. A read has an end.
func TestFind_DuringARead(t *testing.T) {
	t.Parallel()
	keys := set(t, []jose.JSONWebKey{public("1", "", "", newIssuer(t).rsa)})
	synctest.Test(t, func(t *testing.T) {
		from := &source{answer: answer{text: keys, takes: maxWait / 2}}
		k := newKeys(from.read, urlPause, slog.New(slog.DiscardHandler))
		load := func() (took time.Duration, err error) {
			start := time.Now()
			err = k.Load(t.Context())
			return time.Since(start), err
		}
		k.wanted <- struct{}{} // a request that the read answers
		go func() { _, _ = load() }()
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		leave()
		start := time.Now()
		if _, err := k.find(gone, "1"); !errors.Is(err, stock.ErrBusy) || time.Since(start) != 0 {
			t.Errorf("a request that has ended: %v after %v", err, time.Since(start))
		}
		if found, err := k.find(t.Context(), "1"); err != nil || len(found) != 1 {
			t.Errorf("found %d keys, %v", len(found), err)
		}
		if len(k.wanted) > 0 {
			t.Error("another read is requested")
		}
		from.set(answer{takes: time.Hour})
		if took, err := load(); !errors.Is(err, context.DeadlineExceeded) || took != readTimeout {
			t.Errorf("a read without an answer: %v after %v", err, took)
		}
	})
}

// TestParse_SameID checks that all keys with one ID are tried.
func TestParse_SameID(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	keys, err := parse(set(t, []jose.JSONWebKey{public("1", "", "", i.rsa), public("1", "", "", i.rsa2)}))
	if err != nil || len(keys["1"]) != 2 {
		t.Errorf("%d keys, %v", len(keys["1"]), err)
	}
}

// TestFileChanges checks that a file is read again.
func TestFileChanges(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	file := filepath.Join(t.TempDir(), "keys.json")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(set(t, []jose.JSONWebKey{public("1", "", "", i.rsa)}))
	synctest.Test(t, func(t *testing.T) {
		k, err := OpenKeys(t.Context(), file, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.Run(ctx) }()
		defer func() { stop(); <-ended }()
		synctest.Wait()
		write(set(t, []jose.JSONWebKey{public("2", "", "", i.rsa2)}))
		time.Sleep(filePause + time.Second)
		if found := fmt.Sprint(len(k.known("1")), len(k.known("2"))); found != "0 1" {
			t.Errorf("known keys after a change: %s", found)
		}
	})
}
