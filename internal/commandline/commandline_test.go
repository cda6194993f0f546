package commandline

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestErrors gives values to flags, as arguments and in the environment. An error must
// say in words for people which value of what is wrong, and why.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ flag, variable, value, says string }{
		{"max-number", "HOLDFAST_MAX_NUMBER", "7", ""},
		{"max-number", "HOLDFAST_MAX_NUMBER", "x", `"x" is not a whole number`},
		{"max-number", "HOLDFAST_MAX_NUMBER", "0.5", `"0.5" is not a whole number`},
		{"max-number", "HOLDFAST_MAX_NUMBER", "99999999999999999999", `"99999999999999999999" is too large`},
		{"time", "HOLDFAST_TIME", "90s", ""},
		{"time", "HOLDFAST_TIME", "5", `"5" is not a duration such as 500ms, 30s or 15m`},
		{"time", "HOLDFAST_TIME", "soon", `"soon" is not a duration such as 500ms, 30s or 15m`},
		{"switch", "HOLDFAST_SWITCH", "perhaps", `"perhaps" is not true or false`},
		{"address", "HOLDFAST_ADDRESS", "x", `failed to parse IP: "x"`}, // as the value itself says
	} {
		newFlags := func() *pflag.FlagSet {
			flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
			flags.Int("max-number", 1, "")
			flags.Duration("time", time.Second, "")
			flags.Bool("switch", false, "")
			flags.IP("address", nil, "")
			return flags
		}
		check := func(err error, prefix string) {
			t.Helper()
			switch {
			case test.says == "" && err != nil:
				t.Errorf("%s: %v", test.value, err)
			case test.says != "" && (err == nil || err.Error() != prefix+": "+test.says):
				t.Errorf("%v, want %s: %s", err, prefix, test.says)
			}
		}
		check(Parse(newFlags(), []string{"--" + test.flag + "=" + test.value}), "--"+test.flag)
		check(Environment(newFlags(), func(name string) string {
			if name == test.variable {
				return test.value
			}
			return ""
		}), test.variable+" (for --"+test.flag+")")
	}
}

// TestPrecedence checks that an argument outranks the environment, and that an empty
// variable sets nothing.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	one, two, three := flags.Int("one", 1, ""), flags.Int("two", 2, ""), flags.Int("three", 3, "")
	if err := Parse(flags, []string{"--one=10"}); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"HOLDFAST_ONE": "100", "HOLDFAST_TWO": "200", "HOLDFAST_THREE": ""}
	if err := Environment(flags, func(name string) string { return values[name] }); err != nil {
		t.Fatal(err)
	}
	if *one != 10 || *two != 200 || *three != 3 {
		t.Errorf("%d, %d, %d", *one, *two, *three)
	}
}
