// Package commandline sets the flags of a program from its arguments and from the
// environment, with errors for people.
package commandline

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Prefix is the prefix of the environment variables of flags: HOLDFAST_ADMIN_TOKEN sets
// --admin-token.
const Prefix = "HOLDFAST_"

// Parse sets the flags that args name. An error about a value has the flag and the value.
func Parse(flags *pflag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, reason(invalid))
	}
	return err
}

// Environment sets the flags that are not set yet and have a variable in environ that is
// not empty. environ has the form of os.Environ. An error has the variable, the flag and
// the value. A variable with Prefix that no program of this project knows is an error
// too, so that a misspelt one is not ignored.
func Environment(flags *pflag.FlagSet, environ []string) error {
	unknown := ""
	for _, pair := range environ {
		variable, value, _ := strings.Cut(pair, "=")
		name, ok := strings.CutPrefix(variable, Prefix)
		if !ok || value == "" {
			continue
		}
		f := flags.Lookup(flagOf(name))
		switch {
		case f == nil || variable != Variable(f.Name) || slices.Contains(argumentsOnly, f.Name):
			if unknown == "" && !isKnown(name) {
				unknown = variable
			}
			continue
		case f.Changed:
			continue
		}
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](flags.Set(f.Name, value)); ok {
			return fmt.Errorf("%s (for --%s): %w", variable, f.Name, reason(invalid))
		}
		_ = flags.SetAnnotation(f.Name, fromEnvironment, nil) // it exists
	}
	if unknown != "" {
		return unknownError(flags, unknown)
	}
	return nil
}

// fromEnvironment annotates the flags that Environment has set.
const fromEnvironment = "environment"

// Blame returns err, about flags that are set. If it begins with a flag that Environment
// has set, the error that Blame returns begins with the flag's variable.
func Blame(flags *pflag.FlagSet, err error) error {
	if err == nil {
		return nil
	}
	text, isFlag := strings.CutPrefix(err.Error(), "--")
	name, _, _ := strings.Cut(text, ":")
	f := flags.Lookup(name)
	if !isFlag || f == nil {
		return err
	}
	if _, set := f.Annotations[fromEnvironment]; !set {
		return err
	}
	return blamed{name, err}
}

// blamed is an error about a flag that its variable has set.
type blamed struct {
	flag string
	error
}

func (e blamed) Error() string {
	return Variable(e.flag) + " (for --" + e.flag + ")" + strings.TrimPrefix(e.error.Error(), "--"+e.flag)
}

func (e blamed) Unwrap() error { return e.error }

// Variable returns the environment variable of the flag with this name.
func Variable(flag string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// flagOf returns the flag whose variable is Prefix and name.
func flagOf(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

// expected are the types of values whose errors name the functions of Go that failed.
var expected = map[string]string{
	"bool":     "true or false",
	"int":      "a whole number",
	"duration": "a duration such as 500ms, 30s or 15m",
}

// reason returns what is wrong with a value.
func reason(invalid *pflag.InvalidValueError) error {
	what, ok := expected[invalid.GetFlag().Value.Type()]
	switch {
	case !ok:
		return invalid.Unwrap()
	case errors.Is(invalid, strconv.ErrRange):
		return fmt.Errorf("%q is too large", invalid.GetValue())
	}
	return fmt.Errorf("%q is not %s", invalid.GetValue(), what)
}
