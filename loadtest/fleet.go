package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// fleet is the services that are loaded: instances started here, or targets.
type fleet struct {
	start func() *testenv.APIServer // nil: targets

	mu   sync.Mutex
	apis []*testenv.APIServer
	urls []string
}

// startFleet starts instances of the strategy.
func (l *lab) startFleet(spec strategy.Spec) *fleet {
	f := &fleet{start: func() *testenv.APIServer { return testenv.ServeFile(l.t, l.program, l.flags(spec)...) }}
	for range l.settings.instances {
		api := f.start()
		f.apis, f.urls = append(f.apis, api), append(f.urls, api.URL())
	}
	return f
}

// targetFleet is what runs already, with the strategy that it runs.
func (l *lab) targetFleet(ctx context.Context) (f *fleet, spec strategy.Spec, err error) {
	for i, url := range l.targets {
		running, guard, err := l.running(ctx, url)
		switch {
		case err != nil:
			return nil, spec, err
		case i > 0 && guard != (l.guard == "on"):
			return nil, spec, fmt.Errorf("%s and %s differ in --guard", l.targets[0], url)
		case i > 0 && running.Name != spec.Name:
			return nil, spec, fmt.Errorf("%s runs %s, %s runs %s: instances share their stores only with one strategy", l.targets[0], spec.Name, url, running.Name)
		}
		l.guard = "off"
		if guard {
			l.guard = "on"
		}
		spec = running
	}
	return &fleet{urls: l.targets}, spec, nil
}

// url takes turns with the services.
func (f *fleet) url(n int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.urls[n%len(f.urls)]
}

// pids are the processes of the instances started here.
func (f *fleet) pids() (ids []int) {
	for _, api := range f.apis {
		ids = append(ids, api.PIDs()...)
	}
	return ids
}

// crash kills the last instance with SIGKILL. Its URL answers nobody until restart.
func (f *fleet) crash() {
	last := len(f.apis) - 1
	f.apis[last].Kill()
	f.apis = f.apis[:last]
}

// restart starts an instance in the place of the one that crashed.
func (f *fleet) restart() {
	api := f.start()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls[len(f.apis)] = api.URL()
	f.apis = append(f.apis, api)
}

// stop ends the instances started here.
func (f *fleet) stop() {
	for _, api := range f.apis {
		api.Interrupt()
	}
	for _, api := range f.apis {
		api.Wait()
	}
}
