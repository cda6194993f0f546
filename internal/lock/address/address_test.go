package address

import (
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Address{
		"h1:1":                     {Servers: []string{"h1:1"}},
		"h1:1,[::1]:2":             {Servers: []string{"h1:1", "[::1]:2"}},
		"h1:1/":                    {Servers: []string{"h1:1"}},
		"h1:1/team/locks":          {Servers: []string{"h1:1"}, Path: "team/locks"},
		"u:p@h1:1,h2:2/team%20a":   {User: "u", Password: "p", Servers: []string{"h1:1", "h2:2"}, Path: "team a"},
		"u%3A:p%40%2F%3A:%25@h1:1": {User: "u:", Password: "p@/::%", Servers: []string{"h1:1"}},
		"u:p@with:an@h1:1":         {User: "u", Password: "p@with:an", Servers: []string{"h1:1"}},
	} {
		got, err := Parse(text)
		if err != nil || got.User != want.User || got.Password != want.Password || got.Path != want.Path || !slices.Equal(got.Servers, want.Servers) {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"":               "server 1 of 1 is not host:port",
		"h1":             "server 1 of 1 is not host:port",
		"h1:1,":          "server 2 of 2 is not host:port",
		"h1:1,h2:0":      "server 2 of 2 is not host:port",
		"h1:65536":       "server 1 of 1 is not host:port",
		":1":             "server 1 of 1 is not host:port",
		"@h1:1":          "the text before @ is not USER:PASSWORD",
		"u@h1:1":         "the text before @ is not USER:PASSWORD",
		"u:@h1:1":        "the text before @ is not USER:PASSWORD",
		"u:%zz@h1:1":     "the user or the password has an invalid percent-encoding",
		"u:s3/cret@h1:1": "in the user and the password, / is written as %2F",
		"h1:1/%zz":       "the path has an invalid percent-encoding",
		"h1:1//a":        "the path after the servers: invalid lock name",
		"h1:1/a/":        "the path after the servers: invalid lock name",
		"h1:1/..":        "the path after the servers: invalid lock name",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%q): %v, want an error that says %q", text, err, says)
		}
	}
}

// FuzzParse checks that an address keeps its parts when it is written again, and that
// no error contains a password.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"h1:1", "u:p@h1:1,h2:2/team/locks", "u%3A:p%40@[::1]:2181/a", "@", "/", "u:p@/@", "h:1/%zz"} {
		f.Add(text, "s3cret")
	}
	f.Fuzz(func(t *testing.T, text, password string) {
		if a, err := Parse(text); err == nil {
			written := strings.Join(a.Servers, ",")
			if a.User != "" {
				written = url.QueryEscape(a.User) + ":" + url.QueryEscape(a.Password) + "@" + written
				written = strings.ReplaceAll(written, "+", "%20")
			}
			if a.Path != "" {
				written += "/" + strings.ReplaceAll(url.PathEscape(a.Path), "@", "%40")
			}
			again, err := Parse(written)
			if err != nil || again.User != a.User || again.Password != a.Password || again.Path != a.Path || !slices.Equal(again.Servers, a.Servers) {
				t.Errorf("%q is %+v, and written again, as %q, %+v, %v", text, a, written, again, err)
			}
		}
		const marker = "s3cr3t!" // in no error text
		if _, err := Parse("user:" + marker + password + "@" + text); err != nil && strings.Contains(err.Error(), marker) {
			t.Errorf("an error contains the password: %v", err)
		}
	})
}
