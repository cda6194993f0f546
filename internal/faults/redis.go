package faults

import (
	"context"
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

// Hook strikes the commands of a Redis client that its Injector says. A
// pipeline is one command.
type Hook struct{ *Injector }

var _ redis.Hook = Hook{}

// NewHook returns a hook for redis.UniversalClient.AddHook.
func NewHook() Hook { return Hook{&Injector{}} }

// redisSilence is how long a client waits for an answer that does not come.
const redisSilence = 2 * time.Second

var errDial error = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// DialHook refuses connections while the store is gone.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if h.isGone() {
			return nil, errDial
		}
		return next(ctx, network, address)
	}
}

// ProcessHook strikes single commands.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.strike(ctx, []redis.Cmder{cmd}, func(ctx context.Context) error { return next(ctx, cmd) }, next)
	}
}

// ProcessPipelineHook strikes pipelines.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	one := func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, []redis.Cmder{cmd}) }
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.strike(ctx, cmds, func(ctx context.Context) error { return next(ctx, cmds) }, one)
	}
}

// strike runs the commands as their fault says. one runs a command of its own.
func (h Hook) strike(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error, one redis.ProcessHook) error {
	text := saidAll(cmds)
	if strings.HasPrefix(text, "hello ") && !h.isGone() { // how a connection begins
		return run(ctx)
	}
	kind := h.next(text)
	if kind == None || replies[kind] == "" && !slices.Contains(broken, kind) {
		return run(ctx)
	}
	err := h.struck(ctx, kind, cmds, run, one)
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

func (h Hook) struck(ctx context.Context, kind Kind, cmds []redis.Cmder, run func(context.Context) error, one redis.ProcessHook) error {
	switch kind {
	case Refused:
		return errDial
	case Lost:
		_ = run(ctx)
		return io.EOF
	case Late:
		copies := copied(cmds)
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
		case <-time.After(redisSilence):
			return os.ErrDeadlineExceeded
		}
	}
	reply := redis.NewCmd(ctx, "eval", "return redis.error_reply(ARGV[1])", 0, replies[kind])
	if err := one(ctx, reply); err != nil { // the client sets a command's error later
		return err
	}
	return reply.Err()
}

// broken are the kinds that are no answer.
var broken = []Kind{Refused, Lost, Late, Hung, HungDone}

// replies are Redis's own errors.
var replies = map[Kind]string{
	OutOfMemory: "OOM command not allowed when used memory > 'maxmemory'.",
	ReadOnly:    "READONLY You can't write against a read only replica.",
	Loading:     "LOADING Redis is loading the dataset in memory",
	NoScript:    "NOSCRIPT No matching script. Please use EVAL.",
}

// copied are the same commands, for answers that nobody reads.
func copied(cmds []redis.Cmder) []redis.Cmder {
	copies := make([]redis.Cmder, len(cmds))
	for i, cmd := range cmds {
		copies[i] = redis.NewCmd(context.Background(), slices.Clone(cmd.Args())...)
	}
	return copies
}

// saidAll is what the commands say: their first words, as far as they are text.
func saidAll(cmds []redis.Cmder) string {
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
