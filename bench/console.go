package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// console measures each strategy without a console and with one open, in turns under one load. It
// compares windows of one run, because runs differ more from each other than windows do.
func (l *lab) console(ctx context.Context) error {
	rows := table.New("", "orders/s: nobody watches", "one console is open", "ratio: median", "first quartile", "third quartile",
		"µs of CPU of the service per order: nobody watches", "one console is open")
	for _, v := range l.chosen(true) {
		nobody, one, fault, err := l.turns(ctx, v)
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		if fault != "" {
			rows.Add(v.name, "failed: "+fault)
			continue
		}
		ratios := make([]float64, len(one))
		for i := range one {
			ratios[i] = rate(one[i], nobody[i])
		}
		slices.Sort(ratios)
		quantile := func(q float64) string { return fmt.Sprintf("%.3f", measure.Quantile(ratios, q)) }
		x, y := median(nobody), median(one)
		rows.Add(v.name, whole(x.perSecond), whole(y.perSecond), quantile(0.5), quantile(0.25), quantile(0.75), whole(x.app), whole(y.app))
	}
	rows.WriteMarkdown(l.report)
	return nil
}

// turns measures pairs of windows, one pair a round: one window without a console, and one with a
// console open. The order within the pair alternates.
func (l *lab) turns(ctx context.Context, v variant) (nobody, one []sample, fault string, err error) {
	in := situation{skus: 1}
	if err := l.reset(ctx, v, in); err != nil {
		return nil, nil, "", err
	}
	api, err := l.start(ctx, v, in)
	if err != nil {
		return nil, nil, "", err
	}
	defer testenv.End(api...)
	const slack = 5 // seconds for the work between windows, plus a twentieth of the time
	seconds := l.WarmUp + 2*l.Rounds*l.Seconds
	type outcome struct {
		result
		err error
	}
	ended := make(chan outcome, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		r, err := generate(ctx, l.script, wrkLoad{urls: api.urls(), connections: l.Connections, skus: 1, keyed: v.keyed, run: "c"}, time.Duration(seconds+seconds/20+slack)*time.Second)
		ended <- outcome{r, err}
	}()
	time.Sleep(time.Duration(l.WarmUp) * time.Second) // the warm-up
	for round := range l.Rounds {
		var pair [2]sample // without a console, and with a console
		for turn := range 2 {
			which := (round + turn) % 2
			if pair[which], err = l.window(ctx, api[0], which == 1); err != nil {
				cancel()
				return nil, nil, "", errors.Join(err, (<-ended).err)
			}
		}
		nobody, one = append(nobody, pair[0]), append(one, pair[1])
		fmt.Fprintf(l.progress, "%s round %d/%d %-10s %6.0f/s, one console is open: %6.0f/s\n", l.database, round+1, l.Rounds, v.name, pair[0].perSecond, pair[1].perSecond)
	}
	select {
	case early := <-ended:
		return nil, nil, "", errors.Join(errors.New("the load ended before the last window"), early.err)
	default:
	}
	r := <-ended
	if r.err != nil {
		return nil, nil, "", r.err
	}
	fault = l.audit(ctx, v, in, api, r.Created)
	if fault == "" {
		fault = unexpected(v, r.result)
	}
	return nobody, one, fault, nil
}

// window measures the service under the load that is running.
func (l *lab) window(ctx context.Context, api *testenv.APIServer, watched bool) (s sample, err error) {
	if watched {
		stop, closed := watch(ctx, api.URL())
		if closed != nil {
			return s, closed
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	const asked = "holdfast_orders_total" // all orders are accepted in this situation; turns checks that
	before, err := measure.Counters(ctx, api.URL()+"/metrics")
	if err != nil {
		return s, err
	}
	start, used := time.Now(), machine.CPUTime(api.PIDs())
	time.Sleep(time.Duration(l.Seconds) * time.Second) // the measurement
	after, err := measure.Counters(ctx, api.URL()+"/metrics")
	if err != nil {
		return s, err
	}
	orders := after[asked] - before[asked]
	if orders == 0 {
		return s, errors.New("the service got no order in one of the windows")
	}
	s.perSecond = orders / time.Since(start).Seconds()
	s.app = float64((machine.CPUTime(api.PIDs()) - used).Microseconds()) / orders
	return s, nil
}

// watch opens the stream of the console at url and reads it, as a browser does, until
// stop is called. stop returns an error if the stream had ended by itself.
func watch(ctx context.Context, url string) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/console/stream", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request) //nolint:bodyclose // the goroutine closes it
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("the console answers %s", response.Status)
	}
	ended := make(chan error, 1)
	go func() {
		defer response.Body.Close()
		_, err := io.Copy(io.Discard, response.Body)
		ended <- err // nil: the service has closed the stream
	}()
	return func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the console's stream ended by itself: %w", cmp.Or(err, io.ErrUnexpectedEOF))
		}
		return nil
	}, nil
}
