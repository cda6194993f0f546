// Package commandline sets the fields of a struct from the arguments and the environment of
// a program. The tags of the fields define the flags, as kong reads them.
package commandline

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"
)

// Prefix is the prefix of the environment variables of flags: HOLDFAST_ADMIN_TOKEN sets
// --admin-token.
const Prefix = "HOLDFAST_"

// EnvironmentHelp explains the environment variables in the help of programs.
const EnvironmentHelp = "Each flag can be set in the environment too, as " + Prefix + " and its name in capitals, with _ for -; a flag on the command line takes precedence; a variable with another name after " + Prefix + " is refused."

// ErrHelp means that Parse has printed the answer to --help or --version.
var ErrHelp = errors.New("help was printed")

// UsageError is a mistake on the command line or in the environment.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// Usagef formats a UsageError.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Parse sets the fields of the struct that program points to. Arguments take precedence over
// environ, which has the form of os.Environ; a variable that is empty sets nothing. Then check
// checks the fields against each other. If help is asked for, Parse prints it to stdout and returns
// ErrHelp.
//
// Every other error is a UsageError. It begins with the flag, or with the variable that has set it.
// It repeats a value that does not fit its flag. Of a URL it repeats only the scheme, because a URL
// may contain a password. A variable with Prefix that no program of this project knows is an error
// too, so that a misspelt one is not ignored.
func Parse(program any, args, environ []string, stdout io.Writer, check func(*kong.Context) error, options ...kong.Option) error {
	helped := false
	variables := values(environ)
	parser := New(program, append(options,
		kong.Writers(stdout, io.Discard),
		kong.Exit(func(int) { helped = true }),
		kong.Resolvers(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
			if value, set := variables[Variable(f.Name)]; set && !slices.Contains(argumentsOnly, f.Name) {
				return value, nil
			}
			return nil, nil // not set
		})))...)
	line, err := parser.Parse(args)
	if helped {
		return ErrHelp
	}
	if invalid := (*kong.ParseError)(nil); errors.As(err, &invalid) {
		line, err = invalid.Context, errors.New(twoHyphens(parser.Model.Flags, args, CutURL(err.Error())))
	} else if err = checkVariables(parser.Model.Flags, variables); err == nil {
		err = check(line)
	}
	if err != nil {
		return UsageError{blame(line, variables, err)}
	}
	return nil
}

// New returns the parser of a program. It panics if the tags of the program make no sense.
func New(program any, options ...kong.Option) *kong.Kong {
	bools := &switches{}
	parser := kong.Must(program, append(options,
		kong.KindMapper(reflect.Bool, bools),
		kong.KindMapper(reflect.String, kong.MapperFunc(decodeText)),
		kong.WithHyphenPrefixedParameters(true), // a negative number is a value
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}))...)
	bools.commands = parser.Model.Children
	return parser
}

// twoHyphens corrects an error about an argument such as -strategy, which kong reads as the letters
// of short flags. If the error blames the first letter, twoHyphens names the flag.
func twoHyphens(flags []*kong.Flag, args []string, says string) string {
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		isFlag := slices.ContainsFunc(flags, func(f *kong.Flag) bool { return f.Name == name })
		if isFlag && strings.HasPrefix(says, "unknown flag -"+name[:1]) {
			return fmt.Sprintf("unknown flag -%s, did you mean \"--%s\"?", name, name)
		}
	}
	return says
}

// CutURL cuts s after the scheme of a URL.
func CutURL(s string) string {
	if before, _, found := strings.Cut(s, "://"); found {
		return before + ":…"
	}
	return s
}

// blame returns err. If err begins with a flag that a variable has set, the returned error begins
// with the variable.
func blame(line *kong.Context, variables map[string]string, err error) error {
	text, isFlag := strings.CutPrefix(err.Error(), "--")
	end := strings.IndexFunc(text, func(r rune) bool { return r != '-' && !unicode.IsLower(r) })
	if !isFlag || end < 0 || variables[Variable(text[:end])] == "" {
		return err
	}
	if p := find(line, text[:end]); p != nil && !p.Resolved { // an argument has set the flag
		return err
	}
	return blamed{err, Variable(text[:end]) + " (for --" + text[:end] + ")" + text[end:]}
}

// blamed is an error with a changed text.
type blamed struct {
	error
	text string
}

func (e blamed) Error() string { return e.text }

func (e blamed) Unwrap() error { return e.error }

// IsSet reports whether an argument or a variable has set the flag.
func IsSet(line *kong.Context, flag string) bool { return find(line, flag) != nil }

// find returns where the flag is in the line, or nil if it is not there.
func find(line *kong.Context, flag string) *kong.Path {
	for _, p := range line.Path {
		if p.Flag != nil && p.Flag.Name == flag {
			return p
		}
	}
	return nil
}

// switches decodes flags that are on or off. A flag without a value is on. A word after it
// is its value, unless the word is a command.
type switches struct{ commands []*kong.Node }

// IsBool says that a value is not required.
func (s *switches) IsBool() bool { return true }

// Decode sets the target.
func (s *switches) Decode(c *kong.DecodeContext, target reflect.Value) error {
	value := "on"
	next := c.Scan.Peek()
	isCommand := slices.ContainsFunc(s.commands, func(n *kong.Node) bool { return n.Name == next.Value })
	if next.Type == kong.FlagValueToken || !next.IsEOL() && !isCommand && !strings.HasPrefix(next.String(), "-") {
		value = c.Scan.Pop().String()
	}
	switch value {
	case "on", "true":
		target.SetBool(true)
	case "off", "false":
		target.SetBool(false)
	default:
		return fmt.Errorf("%q is not one of on, off, true, false", value)
	}
	return nil
}

// decodeText takes the next word as it is, even if it begins with a hyphen, as a token may. kong's
// own decoder would take the end of the line for an empty word. It would also replace bytes that
// are not UTF-8.
func decodeText(c *kong.DecodeContext, target reflect.Value) error {
	word := c.Scan.Pop()
	if word.IsEOL() {
		return errors.New("a value is required")
	}
	target.SetString(word.String())
	return nil
}
