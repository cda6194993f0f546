package testenv

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// parentPoll is the time between two checks of the parent process.
const parentPoll = 200 * time.Millisecond

// WithGoRun returns a context that ends when the go command that runs this
// program ends. A go run that is killed does not signal the program. If the
// program was started in another way, or not on Linux, WithGoRun returns ctx.
func WithGoRun(ctx context.Context) context.Context {
	parent := os.Getppid()
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(parent), "comm"))
	if err != nil || strings.TrimSpace(string(name)) != "go" {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		ticker := time.NewTicker(parentPoll)
		defer ticker.Stop()
		for os.Getppid() == parent {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return ctx
}
