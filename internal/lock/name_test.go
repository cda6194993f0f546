package lock

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"a", "stock:10001", "stock:10001/7", "gather:10001", "locktest/b/c", "nightly report", "订单/1",
		"{order}:1", "a{order}b", "a{b}c}d{", "...", "a..b", "a_c_", "lock-0", "Holdfast_", strings.Repeat("n", 255),
	} {
		if err := CheckName(name); err != nil {
			t.Errorf("a valid name: %v", err)
		}
	}
	for name, says := range map[string]string{
		"":                       "it is empty",
		strings.Repeat("n", 256): "it has 256 bytes, at most 255 are allowed",
		"a\xffb":                 "it is not valid UTF-8",
		"a\x00b":                 `the character '\x00' is not allowed`,
		"a\nb":                   `the character '\n' is not allowed`,
		"a\u0085b":               `the character '\u0085' is not allowed`,
		"a\u00a0b":               `the character '\u00a0' is not allowed`,
		"a\ue000b":               `the character '\ue000' is not allowed`,
		"a\ufffdb":               `the character '�' is not allowed`,
		"a😀b":                    `the character '😀' is not allowed`,
		"/":                      "it has an empty part before, between or after slashes",
		"/b":                     "it has an empty part before, between or after slashes",
		"b/":                     "it has an empty part before, between or after slashes",
		"a//b":                   "it has an empty part before, between or after slashes",
		".":                      `the part "." is not allowed`,
		"a/../b":                 `the part ".." is not allowed`,
		"a/_c_x-lock-0":          `the part "_c_x-lock-0" begins with "_c_"`,
		"a{b":                    "braces must enclose a hash tag",
		"a}b":                    "braces must enclose a hash tag",
		"a{}b":                   "braces must enclose a hash tag",
		"holdfast_token:{a}":     `the prefix "holdfast_" is reserved`,
		"holdfast:{a}":           `the prefix "holdfast:" is reserved`,
		"redisson_x":             `the prefix "redisson_" is reserved`,
	} {
		err := CheckName(name)
		if !errors.Is(err, ErrName) || !strings.Contains(err.Error(), says) {
			t.Errorf("CheckName(%q) = %v, want an error that says %q", name, err, says)
		}
	}
}
