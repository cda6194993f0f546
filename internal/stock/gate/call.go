package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// command is a command that the client does not send again after a lost answer. A take that ran
// twice, with a settle in between, would cut its units twice, and so would write.lua. The caller
// handles an unknown outcome.
//
// The client still follows a cluster's redirections, because a redirected command did not run.
type command struct {
	redis.Cmder
	script string // name of the script that the command runs; empty: the command runs no script
}

// NoRetry stops the client from sending the command again.
func (command) NoRetry() bool { return true }

// ScriptName returns the name of the gate's script that a command runs, for example "take", or ""
// if it runs none. Hooks of the client can call it with the commands that they see.
func ScriptName(cmd redis.Cmder) string {
	c, _ := cmd.(command)
	return c.script
}

// call is one run of a script that returns numbers. It names the script and never has its text: see
// Load.
type call struct {
	command command
	cmd     *redis.IntSliceCmd
}

func newCall(ctx context.Context, s *script, keys, args []string) *call {
	cmd := redis.NewIntSliceCmd(ctx, evalSHA(s, keys, args)...)
	return &call{command{Cmder: cmd, script: s.name}, cmd}
}

// evalSHA returns the arguments of EVALSHA for the script. They are pointers into keys and
// args, because a string in an interface would be an allocation.
func evalSHA(s *script, keys, args []string) []any {
	list := make([]any, 0, 3+len(keys)+len(args))
	list = append(list, "evalsha", s.sha, len(keys))
	for i := range keys {
		list = append(list, &keys[i])
	}
	for i := range args {
		list = append(list, &args[i])
	}
	return list
}

// notRun has the prefixes of errors that prove that a script changed nothing. The
// errors that forbid writing stop a script at its first write.
var notRun = []string{
	"BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "OOM", "MISCONF", "NOREPLICAS",
	"NOAUTH", "NOPERM", "WRONGPASS", "MOVED", "ASK", "max number of clients reached", // the client removes "ERR " before it compares
}

// proven wraps err in an error of package stock if err proves that the command
// did nothing. After any other error the outcome is unknown.
func proven(err error) error {
	if err == nil {
		return nil
	}
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return fmt.Errorf("%w: %w", stock.ErrNoGeneration, err)
	}
	if isNotSent(err) {
		return stock.Busy(err)
	}
	for _, prefix := range notRun {
		if redis.HasErrorPrefix(err, prefix) {
			return stock.Busy(err)
		}
	}
	return err
}

// isNotSent reports whether err proves that the command was not sent, because no connection was
// made or none was free.
func isNotSent(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed)
}

// err returns the call's error.
func (c *call) err() error { return proven(c.cmd.Err()) }

// run runs the calls, several in one pipeline, and joins their errors. Each call's
// cmd has its answer.
func (c *Counter) run(ctx context.Context, calls ...*call) error {
	if len(calls) == 1 {
		return proven(c.client.Process(ctx, calls[0].command))
	}
	pipe := c.client.Pipeline()
	for _, call := range calls {
		_ = pipe.Process(ctx, call.command) // Process queues the command
	}
	_, _ = pipe.Exec(ctx) // each call has its own error
	var errs []error
	for _, call := range calls {
		if err := call.err(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var errAnswer = errors.New("the script's answer has the wrong length")

// strings runs a script that returns at least one string.
func (c *Counter) strings(ctx context.Context, s *script, keys []string, args ...string) ([]string, error) {
	cmd := redis.NewStringSliceCmd(ctx, evalSHA(s, keys, args)...)
	if err := c.client.Process(ctx, command{Cmder: cmd, script: s.name}); err != nil {
		return nil, proven(err)
	}
	answer := cmd.Val()
	if len(answer) == 0 {
		return nil, errAnswer
	}
	return answer, nil
}

// numbering numbers the SKUs of one call from 1, in the order of first use.
type numbering struct {
	skus    []stock.SKU
	numbers map[stock.SKU]int
}

// number returns the number of the SKU and assigns one if it has none yet.
func (n *numbering) number(sku stock.SKU) int {
	if last := len(n.skus); last > 0 && n.skus[last-1] == sku { // the usual case of one hot SKU
		return last
	}
	if number, ok := n.numbers[sku]; ok {
		return number
	}
	if n.numbers == nil {
		n.numbers = make(map[stock.SKU]int)
	}
	n.skus = append(n.skus, sku)
	n.numbers[sku] = len(n.skus)
	return len(n.skus)
}

// arguments returns the number of SKUs, then the SKUs.
func (n *numbering) arguments() []string {
	args := make([]string, 0, 1+len(n.skus))
	args = append(args, strconv.Itoa(len(n.skus)))
	for _, sku := range n.skus {
		args = append(args, string(sku))
	}
	return args
}

// linesPerCall returns how many lines of d one script call can handle: one on a
// cluster, otherwise all.
func (c *Counter) linesPerCall(d stock.Deduction) int {
	if c.cluster {
		return 1
	}
	return max(len(d.Lines), 1)
}
