package commandline

import (
	"errors"
	"fmt"
	"strings"
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
		check(Environment(newFlags(), []string{test.variable + "=" + test.value}), test.variable+" (for --"+test.flag+")")
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
	if err := Environment(flags, []string{"HOLDFAST_ONE=100", "HOLDFAST_TWO=200", "HOLDFAST_THREE=", "THREE=300"}); err != nil {
		t.Fatal(err)
	}
	if *one != 10 || *two != 200 || *three != 3 {
		t.Errorf("%d, %d, %d", *one, *two, *three)
	}
}

// TestUnknownVariable checks that a variable that nothing reads is an error with the
// nearest name, and that the variables of other programs are none.
func TestUnknownVariable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ variable, says string }{
		{"HOLDFAST_GUARDS=off", "HOLDFAST_GUARDS: no flag has this variable; did you mean HOLDFAST_GUARD?"},
		{"HOLDFAST_TAKE_DEADLIN=1s", "did you mean HOLDFAST_TAKE_DEADLINE?"},
		{"HOLDFAST_guard=off", "HOLDFAST_guard: no flag has this variable"},
		{"HOLDFAST_TAKE-DEADLINE=1s", "did you mean HOLDFAST_TAKE_DEADLINE?"},
		{"HOLDFAST_DATABASE=x", "HOLDFAST_DATABASE: no flag has this variable; unset it, or name a flag"},
		{"HOLDFAST_=x", "HOLDFAST_: no flag has this variable; unset it, or name a flag"},
		{"HOLDFAST_GUARDS=", ""},
		{"GUARDS=off", ""},
		{"HOLDFAST_VERSION=0.1.0", ""}, // of the image; the flag has no variable
		{"HOLDFAST_STRATEGY=lua", ""},  // another program's
		{"HOLDFAST_LEDGER_ID=x", ""},
		{"HOLDFAST_GATEWAY_REDIS=x", ""},
		{"HOLDFAST_TEST_FOLDER=x", ""},
		{"HOLDFAST_FENCING_TOKEN=7", ""},
		{"HOLDFAST_SERVICE_HOST=10.0.0.1", ""}, // of a Service in Kubernetes
		{"HOLDFAST_MYSQL_SERVICE_PORT_SQL=3306", ""},
		{"HOLDFAST_PORT_8080_TCP_ADDR=10.0.0.1", ""},
		{"HOLDFAST_REDIS_PORT=tcp://10.0.0.2:6379", ""},
		{"HOLDFAST_PORT_8080=1", "HOLDFAST_PORT_8080: no flag has this variable"},
	} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		flags.Bool("guard", true, "")
		flags.Bool("version", false, "")
		flags.Duration("take-deadline", time.Second, "")
		err := Environment(flags, []string{"PATH=x", test.variable})
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v, want %s", test.variable, err, test.says)
		}
	}
}

// TestBlame checks that an error about a flag names its variable if that has set it.
func TestBlame(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("admin-token", "", "")
	flags.String("db", "", "")
	if err := errors.Join(Parse(flags, []string{"--db=x"}), Environment(flags, []string{"HOLDFAST_ADMIN_TOKEN=x", "HOLDFAST_DB=y"})); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("too short")
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("--admin-token: %w", cause), "HOLDFAST_ADMIN_TOKEN (for --admin-token): too short"},
		{fmt.Errorf("--db: %w", cause), "--db: too short"},
		{fmt.Errorf("--nope: %w", cause), "--nope: too short"},
		{fmt.Errorf("admin-token: %w", cause), "admin-token: too short"},
	} {
		if err := Blame(flags, test.err); err.Error() != test.want || !errors.Is(err, cause) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
	if err := Blame(flags, nil); err != nil {
		t.Error(err)
	}
}
