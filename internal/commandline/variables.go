package commandline

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// argumentsOnly are the flags that have no variable. HOLDFAST_VERSION is the version of
// the image in docker-compose.yml.
var argumentsOnly = []string{"help", "version"}

// variables are the names, without Prefix, of the variables that programs and files of this project
// read. They may be set for all programs at once, so no program refuses the variables of another.
var variables = strings.Fields(`
	ACK ADMIN_TOKEN AUTH CONSOLE DB DRAIN_DELAY ETCD FENCE GRACE GUARD HOLDERS
	JSON JWT_AUDIENCE JWT_ISSUER JWT_JWKS JWT_SECRET LATE_PAYMENT LEASE LIST LISTEN LOCK LOG_LEVEL MIGRATE
	NAME OPS_LISTEN PAYMENT_WINDOW RATE_BURST RATE_LIMIT REDIS REDLOCK REPAIR SEGMENTS SLOTS SOLD_OUT_MEMORY
	STOP_WITH_STDIN STRATEGY TAKE_DEADLINE TLS_CERT TLS_KEY TRUSTED_PROXIES WAIT ZOOKEEPER

	FENCING_TOKEN SLOT

	ADMIN_PORT FRONT_SUBNET LEDGER_ID LEDGER_ID_FILE PORT VERSION

	NO_SKIP URL
`)

// families are the beginnings of further names: those of the gateway, of the tests and of
// the benchmarks.
var families = []string{"GATEWAY_", "TEST", "BENCH_"}

// serviceLink matches what Kubernetes sets in every pod for a Service whose name begins
// with holdfast, unless the pod's enableServiceLinks is false.
var serviceLink = regexp.MustCompile(`(^|_)(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// isKnown reports whether a program or file of this project, or Kubernetes, uses the variable.
func isKnown(name string) bool {
	return slices.Contains(variables, name) || serviceLink.MatchString(name) ||
		slices.ContainsFunc(families, func(family string) bool { return strings.HasPrefix(name, family) })
}

// checkVariables returns the error of a variable with Prefix that nothing reads. It names
// the nearest variable of the flags, if one differs in at most two characters.
func checkVariables(flags []*kong.Flag, set map[string]string) error {
	names := make(map[string]bool)
	for _, f := range flags {
		names[Variable(f.Name)] = !slices.Contains(argumentsOnly, f.Name)
	}
	for _, variable := range slices.Sorted(maps.Keys(set)) {
		name, ours := strings.CutPrefix(variable, Prefix)
		if !ours || names[variable] || isKnown(name) {
			continue
		}
		nearest, least := "", 3
		for other, settable := range names {
			if d := distance(variable, other); settable && d < least {
				nearest, least = other, d
			}
		}
		if nearest == "" {
			return fmt.Errorf("%s: no flag has this variable; unset it, or use the variable of a flag", variable)
		}
		return fmt.Errorf("%s: no flag has this variable; did you mean %s?", variable, nearest)
	}
	return nil
}

// distance returns how many characters must be inserted, deleted or replaced to turn a
// into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// Variable returns the environment variable of the flag with this name.
func Variable(flag string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// values returns the variables of environ that are not empty.
func values(environ []string) map[string]string {
	set := make(map[string]string)
	for _, pair := range environ {
		if variable, value, _ := strings.Cut(pair, "="); value != "" {
			set[variable] = value
		}
	}
	return set
}
