package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Hook injects the faults of its Injector into the commands of a Redis client. A
// pipeline counts as one command.
type Hook struct{ *Injector }

var _ redis.Hook = Hook{}

// NewHook returns a hook for redis.UniversalClient.AddHook.
func NewHook() Hook { return Hook{&Injector{}} }

// redisTimeout is how long a client waits for an answer.
const redisTimeout = 2 * time.Second

var errDial error = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// DialHook refuses connections after a Gone fault.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if h.isGone() {
			return nil, errDial
		}
		return next(ctx, network, address)
	}
}

// ProcessHook injects faults into single commands.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.inject(ctx, []redis.Cmder{cmd}, func(ctx context.Context) error { return next(ctx, cmd) }, next)
	}
}

// ProcessPipelineHook injects faults into pipelines and transactions. Each command of a
// late transaction runs in one of its own.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		one := func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, []redis.Cmder{cmd}) }
		if cmds[0].Name() == multi {
			one = func(ctx context.Context, cmd redis.Cmder) error {
				return next(ctx, []redis.Cmder{redis.NewStatusCmd(ctx, multi), cmd, redis.NewSliceCmd(ctx, exec)})
			}
		}
		return h.inject(ctx, cmds, func(ctx context.Context) error { return next(ctx, cmds) }, one)
	}
}

// The commands that a client puts around a transaction.
const multi, exec = "multi", "exec"

// inject runs the commands under the fault that the Injector chooses for them. one
// runs a single command on the same client, without faults.
func (h Hook) inject(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error, one redis.ProcessHook) error {
	text := commandsText(cmds)
	if strings.HasPrefix(text, "hello ") && !h.isGone() { // the client's first command on a connection
		return run(ctx)
	}
	kind := h.Next(text)
	switch {
	case kind == Garbled:
		err := run(ctx)
		garble(cmds)
		return err
	case redisErrors[kind] == "" && !slices.Contains(connectionKinds, kind): // no fault, or a fault of databases only
		return run(ctx)
	}
	err := h.fail(ctx, kind, cmds, run, one)
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// fail returns the error of commands under a fault of this kind. It runs the commands if the kind
// requires that.
func (h Hook) fail(ctx context.Context, kind Kind, cmds []redis.Cmder, run func(context.Context) error, one redis.ProcessHook) error {
	switch kind {
	case Refused:
		return errDial
	case Lost:
		_ = run(ctx)
		return io.EOF
	case Late:
		copies := copyCommands(cmds)
		h.later(func() {
			for _, cmd := range copies {
				_ = one(context.Background(), cmd)
			}
		})
		return io.EOF
	case Hung, HungDone:
		if kind == HungDone {
			_ = run(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(redisTimeout):
			return os.ErrDeadlineExceeded
		}
	}
	reply := redis.NewCmd(ctx, "eval", "return redis.error_reply(ARGV[1])", 0, redisErrors[kind])
	if err := one(ctx, reply); err != nil { // the client sets the error of reply only after its hooks have returned
		return err
	}
	return reply.Err()
}

// garble changes answers as described at Garbled.
func garble(cmds []redis.Cmder) {
	for _, cmd := range cmds {
		switch cmd := cmd.(type) {
		case *redis.Cmd:
			if cmd.Err() == nil {
				cmd.SetVal([]any{})
			}
		case *redis.XMessageSliceCmd:
			for i := range cmd.Val() {
				cmd.Val()[i].ID = "?"
			}
		}
	}
}

// connectionKinds are the kinds that break or block the connection. (next returns
// Refused for Gone.)
var connectionKinds = []Kind{Refused, Lost, Late, Hung, HungDone}

// redisErrors are the errors that Redis returns.
var redisErrors = map[Kind]string{
	OutOfMemory: "OOM command not allowed when used memory > 'maxmemory'.",
	ReadOnly:    "READONLY You can't write against a read only replica.",
	Loading:     "LOADING Redis is loading the dataset in memory",
	NoScript:    "NOSCRIPT No matching script. Please use EVAL.",
}

// copyCommands copies the commands, because the originals must not get the answers of late
// commands. It leaves out MULTI and EXEC, which the client adds.
func copyCommands(cmds []redis.Cmder) (copies []redis.Cmder) {
	for _, cmd := range cmds {
		if name := cmd.Name(); name != multi && name != exec {
			copies = append(copies, redis.NewCmd(context.Background(), slices.Clone(cmd.Args())...))
		}
	}
	return copies
}

// commandsText returns the names and arguments of the commands, separated by spaces.
func commandsText(cmds []redis.Cmder) string {
	var text strings.Builder
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			switch arg := arg.(type) {
			case string:
				text.WriteString(arg)
			case *string:
				text.WriteString(*arg)
			default:
				fmt.Fprint(&text, arg)
			}
			text.WriteByte(' ')
		}
	}
	return text.String()
}

// Around is a hook of a Redis client. The client calls it for each command and each pipeline, and
// the hook runs them. If it returns another error than run did, all commands get that error.
type Around func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error

var _ redis.Hook = Around(nil)

// DialHook changes nothing.
func (Around) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls the function with a single command.
func (a Around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return a.call(ctx, []redis.Cmder{cmd}, func(ctx context.Context) error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook calls the function with a pipeline, or with a transaction and the
// commands that the client puts around it.
func (a Around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return a.call(ctx, cmds, func(ctx context.Context) error { return next(ctx, cmds) })
	}
}

func (a Around) call(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
	if name := cmds[0].Name(); name == "hello" || name == "client" { // the client's first commands on a connection
		return run(ctx)
	}
	var ran error
	err := a(ctx, cmds, func(ctx context.Context) error {
		ran = run(ctx)
		return ran
	})
	if err != nil && !errors.Is(err, ran) {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	return err
}
