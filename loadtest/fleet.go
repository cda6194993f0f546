package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// fleet is the services under load: instances that the load test starts, or the
// services at --target.
type fleet struct {
	start func() *testenv.APIServer // starts an instance; nil with --target

	mu   sync.Mutex
	apis []*testenv.APIServer
	urls []string
}

// startFleet starts instances with the strategy.
func (l *lab) startFleet(spec assembly.Spec) *fleet {
	f := &fleet{start: func() *testenv.APIServer { return testenv.ServeFile(l.t, l.program, l.flags(spec)...) }}
	for range l.Instances {
		api := f.start()
		f.apis, f.urls = append(f.apis, api), append(f.urls, api.URL())
	}
	return f
}

const (
	// shortDeadline is the deadline of takes. With it, recovery resolves the takes of a killed
	// instance within recoveryLimit, and those of lost commits before a lifecycle load ends.
	shortDeadline = time.Second
	// shortLease ends the locks of a killed instance while the clients still wait.
	shortLease = 3 * time.Second
)

// flags returns the command line of an instance.
func (l *lab) flags(spec assembly.Spec) []string {
	flags := []string{
		"--strategy", spec.Name, "--guard", strconv.FormatBool(l.Guard), "--db", cmp.Or(l.wiredDB, l.DB), "--log-level", "error",
		"--lock", l.Lock, "--stop-with-stdin", "--migrate",
	}
	if spec.HasGate() {
		flags = append(flags, "--redis", l.Redis)
	}
	if l.History != "" {
		flags = append(flags, "--sold-out-memory", "0s") // the check assumes that no refusal comes from memory
	}
	if l.expires() {
		flags = append(flags, "--payment-window", l.PaymentWindow.String())
	}
	if spec.Sound && (l.killsInstance() || l.Lifecycle) {
		flags = append(flags, "--take-deadline", shortDeadline.String(), "--lease", shortLease.String())
	}
	for flag, value := range l.locks().Addresses() {
		if value != "" {
			flags = append(flags, "--"+flag, value)
		}
	}
	return flags
}

// drain releases the stock of a strategy that queues orders, so that the next strategy can take it
// over.
func (l *lab) drain() error {
	drain := testenv.StartFile(l.t, l.program, "drain", "--redis", l.Redis, "--db", l.DB)
	if code := drain.Wait(); code != 0 {
		return fmt.Errorf("running api drain: exit code %d: %s", code, drain.Output())
	}
	return nil
}

// targetFleet returns the services at --target and the strategy that they run. It sets
// the lab's guard to theirs. All of them must run the same strategy with the same guard.
func (l *lab) targetFleet(ctx context.Context) (f *fleet, spec assembly.Spec, err error) {
	for i, url := range l.Targets {
		running, guard, err := l.running(ctx, url)
		switch {
		case err != nil:
			return nil, spec, err
		case i > 0 && guard != l.Guard:
			return nil, spec, fmt.Errorf("%s and %s differ in --guard", l.Targets[0], url)
		case i > 0 && running.Name != spec.Name:
			return nil, spec, fmt.Errorf("%s runs %s and %s runs %s: services that share stores must run one strategy", l.Targets[0], spec.Name, url, running.Name)
		}
		l.Guard, spec = guard, running
	}
	return &fleet{urls: l.Targets}, spec, nil
}

// running returns the strategy that the service runs, and whether its guard is on.
func (l *lab) running(ctx context.Context, url string) (spec assembly.Spec, guard bool, err error) {
	service, err := l.client.At(url)
	if err != nil {
		return assembly.Spec{}, false, err
	}
	answer, err := service.Strategies(ctx)
	if err != nil {
		return assembly.Spec{}, false, fmt.Errorf("%s/strategies: %w", url, err)
	}
	spec, ok := assembly.FindStrategy(answer.Running)
	if !ok {
		return assembly.Spec{}, false, fmt.Errorf("%s runs the unknown strategy %q", url, answer.Running)
	}
	return spec, answer.Guard, nil
}

// url returns the URL of the service for the n-th request, in rotation.
func (f *fleet) url(n int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.urls[n%len(f.urls)]
}

// pids returns the process IDs of the instances.
func (f *fleet) pids() (ids []int) {
	for _, api := range f.apis {
		ids = append(ids, api.PIDs()...)
	}
	return ids
}

// crash kills the last instance with SIGKILL. Requests to its URL fail until restart.
func (f *fleet) crash() {
	last := len(f.apis) - 1
	f.apis[last].Kill()
	f.apis = f.apis[:last]
}

// restart starts an instance to replace the one that crashed.
func (f *fleet) restart() {
	api := f.start()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls[len(f.apis)] = api.URL()
	f.apis = append(f.apis, api)
}
