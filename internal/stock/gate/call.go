package gate

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var (
	//go:embed take.lua
	takeLua string
	//go:embed settle.lua
	settleLua string
	//go:embed give.lua
	giveLua string
	//go:embed fill.lua
	fillLua string
	//go:embed adjust.lua
	adjustLua string
	//go:embed flight.lua
	flightLua string
	//go:embed read.lua
	readLua string
	//go:embed write.lua
	writeLua string
)

// script is a Lua script and the name that Redis has for it.
type script struct{ text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // not for security
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

type scripts struct{ take, settle, give, fill, adjust, flight, read, write script }

func newScripts() *scripts {
	return &scripts{
		take: newScript(takeLua), settle: newScript(settleLua), give: newScript(giveLua),
		fill: newScript(fillLua), adjust: newScript(adjustLua), flight: newScript(flightLua),
		read: newScript(readLua), write: newScript(writeLua),
	}
}

// once is a command that is never sent a second time by the client when its
// answer is lost. A take that ran twice, with a settle of the first in between,
// would cut its units twice; so would a read-and-write gate's transaction. What
// a lost answer means is for the caller to find out.
//
// The client still follows a cluster's redirections, which say that the
// command did not run.
type once struct{ redis.Cmder }

// NoRetry tells the client.
func (once) NoRetry() bool { return true }

// call is one run of a script that answers with numbers.
type call struct {
	script *script
	args   []any // of EVALSHA or EVAL
	cmd    *redis.IntSliceCmd
}

func newCall(s *script, keys, args []string) *call {
	return &call{script: s, args: arguments(s, keys, args)}
}

// arguments are EVALSHA's. They point into keys and args: a pointer is no
// allocation, a string in an interface is one.
func arguments(s *script, keys, args []string) []any {
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

// prepare makes the command: by the script's name, or with its text.
func (c *call) prepare(ctx context.Context, text bool) once {
	if text {
		c.args[0], c.args[1] = "eval", c.script.text
	}
	c.cmd = redis.NewIntSliceCmd(ctx, c.args...)
	return once{c.cmd}
}

// unknown reports whether Redis does not have the script, and so ran nothing.
func unknown(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// run makes the calls, several in one pipeline, and returns their errors
// joined. Each call has its own answer in its cmd.
func (c *counts) run(ctx context.Context, calls ...*call) error {
	if len(calls) == 1 {
		err := c.client.Process(ctx, calls[0].prepare(ctx, false))
		if unknown(err) {
			err = c.client.Process(ctx, calls[0].prepare(ctx, true))
		}
		return err
	}
	again := calls
	for _, text := range []bool{false, true} {
		if len(again) == 0 {
			break
		}
		pipe := c.client.Pipeline()
		for _, call := range again {
			_ = pipe.Process(ctx, call.prepare(ctx, text)) // queues it
		}
		_, _ = pipe.Exec(ctx) // the error of its first failed command, which is looked at below
		var missing []*call
		for _, call := range again {
			if unknown(call.cmd.Err()) {
				missing = append(missing, call)
			}
		}
		again = missing
	}
	var errs []error
	for _, call := range calls {
		if err := call.cmd.Err(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// answer runs a script over one SKU's count, of numbers, that answers with one.
func (c *counts) answer(ctx context.Context, s *script, keys []string, sku stock.SKU, numbers ...int64) (int64, error) {
	args := []string{string(sku)}
	for _, n := range numbers {
		args = append(args, strconv.FormatInt(n, 10))
	}
	call := newCall(s, keys, args)
	if err := c.run(ctx, call); err != nil {
		return 0, err
	}
	answer := call.cmd.Val()
	if len(answer) != 1 {
		return 0, errAnswer
	}
	return answer[0], nil
}

var errAnswer = errors.New("the script's answer has another length than it should")

// strings runs a script that may run twice and answers with at least one string.
func (c *counts) strings(ctx context.Context, s *script, keys []string, args ...string) ([]string, error) {
	list := arguments(s, keys, args)
	cmd := redis.NewStringSliceCmd(ctx, list...)
	err := c.client.Process(ctx, cmd)
	if unknown(err) {
		list[0], list[1] = "eval", s.text
		cmd = redis.NewStringSliceCmd(ctx, list...)
		err = c.client.Process(ctx, cmd)
	}
	if err != nil {
		return nil, err
	}
	answer := cmd.Val()
	if len(answer) == 0 {
		return nil, errAnswer
	}
	return answer, nil
}

// numbering numbers the SKUs of one call from 1, in the order in which they
// come up.
type numbering struct {
	skus    []stock.SKU
	numbers map[stock.SKU]int
}

func (n *numbering) number(sku stock.SKU) int {
	if last := len(n.skus); last > 0 && n.skus[last-1] == sku { // one hot SKU: no need to look
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

// arguments are how many SKUs there are, and the SKUs.
func (n *numbering) arguments() []string {
	args := make([]string, 0, 1+len(n.skus))
	args = append(args, strconv.Itoa(len(n.skus)))
	for _, sku := range n.skus {
		args = append(args, string(sku))
	}
	return args
}
