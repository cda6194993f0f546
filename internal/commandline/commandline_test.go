package commandline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// program has a flag of each kind.
type program struct {
	Number      int           `name:"max-number" default:"1" help:"A number."`
	Time        time.Duration `default:"1s"`
	Switch      bool          `default:"off"`
	Guard       bool          `default:"on"`
	Address     netip.Addr
	Kind        string `default:"a" enum:"a, b"`
	Text        string
	TakeTimeout time.Duration
	Version     kong.VersionFlag
	Run         struct{} `cmd:"" default:"1"`
	Stop        struct{} `cmd:""`
}

// parse parses args, which are separated by spaces, and the environment. It returns the
// command, and what is printed.
func parse(args string, environ ...string) (p program, command, printed string, err error) {
	var stdout bytes.Buffer
	err = Parse(&p, strings.Fields(args), environ, &stdout, func(line *kong.Context) error {
		command = line.Command()
		return nil
	}, kong.Name("test"), kong.Vars{"version": "1.2.3"})
	return p, command, stdout.String(), err
}

// TestErrors sets flags, as arguments and in the environment. An error must name the value, the
// flag or variable, and the reason.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ flag, variable, value, says string }{
		{"max-number", "HOLDFAST_MAX_NUMBER", "7", ""},
		{"max-number", "HOLDFAST_MAX_NUMBER", "x", `: expected a valid 64 bit int but got "x"`},
		{"max-number", "HOLDFAST_MAX_NUMBER", "0.5", `: expected a valid 64 bit int but got "0.5"`},
		{"max-number", "HOLDFAST_MAX_NUMBER", "redis://u:p@h", `: expected a valid 64 bit int but got "redis:…`},
		{"time", "HOLDFAST_TIME", "90s", ""},
		{"time", "HOLDFAST_TIME", "5", `: expected duration but got "5": time: missing unit in duration "5"`},
		{"switch", "HOLDFAST_SWITCH", "on", ""},
		{"switch", "HOLDFAST_SWITCH", "perhaps", `: "perhaps" is not one of on, off, true, false`},
		{"address", "HOLDFAST_ADDRESS", "x", `: ParseAddr("x"): unable to parse IP`}, // the error of the value's type
		{"kind", "HOLDFAST_KIND", "b", ""},
		{"kind", "HOLDFAST_KIND", "c", ` must be one of "a","b" but got "c"`},
	} {
		check := func(err error, prefix string) {
			t.Helper()
			switch {
			case test.says == "" && err != nil:
				t.Errorf("%s: %v", test.value, err)
			case test.says != "" && (!errors.As(err, new(UsageError)) || err.Error() != prefix+test.says):
				t.Errorf("%v, want %s%s", err, prefix, test.says)
			}
		}
		_, _, _, err := parse("--" + test.flag + "=" + test.value)
		check(err, "--"+test.flag)
		_, _, _, err = parse("", test.variable+"="+test.value)
		check(err, test.variable+" (for --"+test.flag+")")
	}
	for args, says := range map[string]string{
		"--text":         "--text: a value is required",
		"--max-number":   "--max-number: ",
		"--nonesuch":     "unknown flag --nonesuch",
		"--swich":        `did you mean "--switch"`,
		"-text x":        `unknown flag -text, did you mean "--text"?`,
		"-max-number=1":  `unknown flag -max-number, did you mean "--max-number"?`,
		"-nonesuch":      "unknown flag -n",
		"text -x":        "unexpected argument text",
		"stoop":          `did you mean "stop"`,
		"redis://u:p@h":  "unexpected argument redis:…",
		"--redis://u=1":  "unknown flag --redis:…",
		"--switch maybe": `--switch: "maybe"`,
		"--switch=stop":  `--switch: "stop" is not one of on, off, true, false`,
	} {
		if _, _, _, err := parse(args); !errors.As(err, new(UsageError)) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", args, err, says)
		}
	}
}

// TestSwitches checks that the word after a switch is its value, unless the word is a command or a
// flag.
func TestSwitches(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args, command string
		on            bool
	}{
		{"", "run", false}, {"--switch", "run", true}, {"--switch=true", "run", true}, {"--switch=false", "run", false}, {"--switch on stop", "stop", true},
		{"--switch stop", "stop", true}, {"--switch --guard", "run", true}, {"stop --switch", "stop", true}, {"--switch --switch off", "run", false},
	} {
		if p, command, _, err := parse(test.args); err != nil || command != test.command || p.Switch != test.on {
			t.Errorf("%s: %s, %v, %v", test.args, command, p.Switch, err)
		}
	}
	if p, _, _, err := parse("", "HOLDFAST_SWITCH=on", "HOLDFAST_GUARD=off"); err != nil || !p.Switch || p.Guard {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestText checks that text reaches the program byte by byte, even if it begins with a hyphen.
func TestText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a b", "-secret", "caf\xe9", "<&>", "a,b"} {
		for _, args := range [][]string{{"--text", text}, {"--text=" + text}} {
			var p program
			if err := Parse(&p, args, nil, io.Discard, func(*kong.Context) error { return nil }); err != nil || p.Text != text {
				t.Errorf("%q: %q, %v", args, p.Text, err)
			}
		}
	}
}

// TestHelp checks that --help and --version print their text whatever the environment contains, and
// that no variable sets them.
func TestHelp(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{"--help": "A number.", "-h stop": "Usage: test stop", "--version": "1.2.3\n"} {
		if _, _, printed, err := parse(args, "HOLDFAST_KIND=c", "HOLDFAST_GUARDS=on"); !errors.Is(err, ErrHelp) || !strings.Contains(printed, says) {
			t.Errorf("%s: %q, %v", args, printed, err)
		}
	}
	if _, _, printed, err := parse("", "HOLDFAST_VERSION=0.1.0"); err != nil || printed != "" {
		t.Errorf("%q, %v", printed, err)
	}
}

// TestPrecedence checks that an argument outranks the environment, and that an empty
// variable sets nothing.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	p, _, _, err := parse("--max-number=10", "HOLDFAST_MAX_NUMBER=100", "HOLDFAST_TIME=3s", "HOLDFAST_KIND=", "TEXT=300")
	if err != nil || p.Number != 10 || p.Time != 3*time.Second || p.Kind != "a" || p.Text != "" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, _, _, err := parse("--max-number=10", "HOLDFAST_MAX_NUMBER=x"); err != nil { // no program reads this variable
		t.Error(err)
	}
}

// TestUnknownVariable checks that an unknown variable is an error with the nearest known name, and
// that variables of other programs are accepted.
func TestUnknownVariable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ variable, says string }{
		{"HOLDFAST_GUARDS=off", "HOLDFAST_GUARDS: no flag has this variable; did you mean HOLDFAST_GUARD?"},
		{"HOLDFAST_TAKE_TIMEOU=1s", "did you mean HOLDFAST_TAKE_TIMEOUT?"},
		{"HOLDFAST_GUARDED=off", "did you mean HOLDFAST_GUARD?"},
		{"HOLDFAST_GUARDIAN=off", "HOLDFAST_GUARDIAN: no flag has this variable; unset it"}, // three characters differ
		{"HOLDFAST_VERSON=1", "HOLDFAST_VERSON: no flag has this variable; unset it"},       // the flag has no variable
		{"HOLDFAST_guard=off", "HOLDFAST_guard: no flag has this variable"},
		{"HOLDFAST_TAKE-TIMEOUT=1s", "did you mean HOLDFAST_TAKE_TIMEOUT?"},
		{"HOLDFAST_DATABASE=x", "HOLDFAST_DATABASE: no flag has this variable; unset it, or use the variable of a flag"},
		{"HOLDFAST_=x", "HOLDFAST_: no flag has this variable; unset it, or use the variable of a flag"},
		{"HOLDFAST_GUARDS=", ""},
		{"GUARDS=off", ""},
		{"HOLDFAST_VERSION=0.1.0", ""}, // variable of the image; the flag has no variable
		{"HOLDFAST_STRATEGY=lua", ""},  // variable of another program
		{"HOLDFAST_LEDGER_ID=x", ""},
		{"HOLDFAST_GATEWAY_REDIS=x", ""},
		{"HOLDFAST_TEST_FOLDER=x", ""},
		{"HOLDFAST_FENCING_TOKEN=7", ""},
		{"HOLDFAST_SERVICE_HOST=10.0.0.1", ""}, // variable of a Service in Kubernetes
		{"HOLDFAST_MYSQL_SERVICE_PORT_SQL=3306", ""},
		{"HOLDFAST_PORT_8080_TCP_ADDR=10.0.0.1", ""},
		{"HOLDFAST_REDIS_PORT=tcp://10.0.0.2:6379", ""},
		{"HOLDFAST_PORT_8080=1", "HOLDFAST_PORT_8080: no flag has this variable"},
	} {
		_, _, _, err := parse("", "PATH=x", test.variable)
		if test.says == "" && err != nil || test.says != "" && (!errors.As(err, new(UsageError)) || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v, want %s", test.variable, err, test.says)
		}
	}
}

// TestBlame checks that an error about a flag names the variable that has set it, if there is one.
func TestBlame(t *testing.T) {
	t.Parallel()
	cause := errors.New("too short")
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("--max-number: %w", cause), "HOLDFAST_MAX_NUMBER (for --max-number): too short"},
		{fmt.Errorf("--text: %w", cause), "--text: too short"},
		{fmt.Errorf("--guard: %w", cause), "--guard: too short"},
		{fmt.Errorf("--nope: %w", cause), "--nope: too short"},
		{fmt.Errorf("max-number: %w", cause), "max-number: too short"},
		{cause, "too short"},
	} {
		check := func(*kong.Context) error { return test.err }
		err := Parse(new(program), []string{"--text=x"}, []string{"HOLDFAST_MAX_NUMBER=7", "HOLDFAST_TEXT=y"}, io.Discard, check)
		if !errors.As(err, new(UsageError)) || err.Error() != test.want || !errors.Is(err, cause) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}

// TestIsSet checks which flags are set, by arguments or variables.
func TestIsSet(t *testing.T) {
	t.Parallel()
	err := Parse(new(program), []string{"--text="}, []string{"HOLDFAST_MAX_NUMBER=1", "HOLDFAST_TIME="}, io.Discard, func(line *kong.Context) error {
		for flag, want := range map[string]bool{"text": true, "max-number": true, "time": false, "guard": false, "nope": false} {
			if IsSet(line, flag) != want {
				t.Errorf("--%s: %v", flag, !want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
