// Package commandline sets the flags of a program from its arguments and from the
// environment, with errors for people.
package commandline

import (
	"errors"
	"fmt"
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

// Environment sets the flags that are not set yet and have a variable that is not empty.
// An error has the variable, the flag and the value.
func Environment(flags *pflag.FlagSet, getenv func(string) string) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		variable := Prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := getenv(variable)
		if f.Changed || value == "" || err != nil {
			return
		}
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](flags.Set(f.Name, value)); ok {
			err = fmt.Errorf("%s (for --%s): %w", variable, f.Name, reason(invalid))
		}
	})
	return err
}

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
