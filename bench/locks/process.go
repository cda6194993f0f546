package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv tells the program to be one process of a contestant.
const childEnv = "HOLDFAST_BENCH_LOCKS"

const (
	// startIn is when the processes start together, counted from when they are
	// told to.
	startIn = 50 * time.Millisecond
	// lead is how long they contend before anything is counted.
	lead = 500 * time.Millisecond
	// openTimeout bounds opening a contestant, and its first grant.
	openTimeout = 30 * time.Second
	// firstTimeout bounds one attempt at the first grant. Some libraries miss
	// that the lock is free, and would wait for ever.
	firstTimeout = 2 * time.Second
	// endTimeout bounds how long the last grants of a run may take.
	endTimeout = 30 * time.Second
	// closeTimeout bounds how long closing a contestant may take.
	closeTimeout = 10 * time.Second
)

// job is what a process is told in its environment.
type job struct {
	Backend, Name string
	Addrs         []string
	Lock          string
	Goroutines    int
}

// orders are what it is told on standard input, by the monotonic clock.
type orders struct{ Start, Until int64 }

// answer is what it says on standard output: once it is ready, and once it is
// done, with so many records to follow.
type answer struct {
	Error   string `json:",omitempty"`
	Records int
	Failed  int    // requests that ended with an error
	Failure string `json:",omitempty"` // the first such error
	Broken  int    // unlocks that ended with an error
	Broke   string `json:",omitempty"` // the first such error
}

// monotonic is CLOCK_MONOTONIC in nanoseconds, which all processes of a machine
// read alike.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // there is no system without it
	}
	return now.Nano()
}

func untilMonotonic(at int64) time.Duration { return time.Duration(at - monotonic()) }

// child is a process of a contestant, from its opening to the end of standard
// input, with which it ends at any time: so it does not outlive its parent.
func child(how string) (exit int) {
	lines := make(chan string, 1)
	var measuring sync.Mutex // held but while it is right to close in peace
	measuring.Lock()
	go func() {
		for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
			lines <- scanner.Text()
		}
		close(lines)
		if !measuring.TryLock() {
			os.Exit(1)
		}
	}()
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	say := func(a answer) {
		line, _ := json.Marshal(a) // of numbers and strings: it cannot fail
		out.Write(append(line, '\n'))
	}
	fail := func(err error) int {
		say(answer{Error: err.Error()})
		out.Flush()
		return 1
	}
	var j job
	if err := json.Unmarshal([]byte(how), &j); err != nil {
		return fail(err)
	}
	c, ok := findContestant(j.Backend, j.Name)
	if !ok {
		return fail(fmt.Errorf("no contestant %q", j.Name))
	}
	o, err := open(c, j)
	if err != nil {
		return fail(err)
	}
	say(answer{})
	out.Flush()

	var told orders
	if err := json.Unmarshal([]byte(<-lines), &told); err != nil {
		return fail(err)
	}
	all, a := contend(o, j.Goroutines, told)
	say(a)
	for goroutine, grants := range all {
		for r := range grants.all() {
			var line [recordSize]byte
			r.encode(line[:], goroutine)
			out.Write(line[:])
		}
	}
	out.Flush()
	measuring.Unlock()
	<-lines // closed: the parent has read the servers' counters
	time.AfterFunc(closeTimeout, func() { os.Exit(1) })
	o.close()
	return 0
}

// open opens a contestant and takes the lock once, so that connections and
// scripts are there before anything is measured.
func open(c contestant, j job) (opened, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	o, err := c.open(ctx, j.Addrs, j.Lock, j.Goroutines)
	if err != nil {
		return opened{}, err
	}
	for {
		err := first(ctx, o)
		if err == nil {
			return o, nil
		}
		if ctx.Err() != nil {
			return opened{}, fmt.Errorf("the first grant: %w", err)
		}
	}
}

func first(ctx context.Context, o opened) error {
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	unlock, err := o.lock(ctx, 0)
	if err != nil {
		return err
	}
	return unlock()
}

// contend has the goroutines lock and unlock from start to end.
func contend(o opened, goroutines int, told orders) (all []*log, a answer) {
	// Without a deadline, which some libraries would shorten their leases by.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.Sleep(untilMonotonic(told.Start))
	defer time.AfterFunc(untilMonotonic(told.Until), cancel).Stop()
	all = make([]*log, goroutines)
	var (
		working sync.WaitGroup
		mu      sync.Mutex
	)
	for i := range all {
		all[i] = new(log)
		working.Go(func() {
			failed, broken, failure, broke := work(ctx, o, i, all[i])
			mu.Lock()
			defer mu.Unlock()
			a.Failed, a.Broken = a.Failed+failed, a.Broken+broken
			a.Failure, a.Broke = cmp.Or(a.Failure, failure), cmp.Or(a.Broke, broke)
		})
	}
	working.Wait()
	for _, grants := range all {
		a.Records += grants.n
	}
	return all, a
}

// work is one goroutine. A request that fails is made again, and is the same
// wait: nobody was served.
func work(ctx context.Context, o opened, goroutine int, grants *log) (failed, broken int, failure, broke string) {
	for ctx.Err() == nil {
		r := record{asked: monotonic()}
		var unlock func() error
		for {
			var err error
			if unlock, err = o.lock(ctx, goroutine); err == nil {
				break
			}
			if ctx.Err() != nil {
				grants.add(r)
				return failed, broken, failure, broke
			}
			failed, failure = failed+1, cmp.Or(failure, err.Error())
			time.Sleep(time.Millisecond)
		}
		r.granted = monotonic()
		r.unlocking = monotonic()
		if err := unlock(); err != nil {
			broken, broke = broken+1, cmp.Or(broke, err.Error())
		}
		grants.add(r)
	}
	return failed, broken, failure, broke
}

// log has a goroutine's records, in pieces, so that it never copies what it has.
type log struct {
	pieces [][]record
	n      int
}

const piece = 1 << 12

func (l *log) add(r record) {
	if l.n%piece == 0 {
		l.pieces = append(l.pieces, make([]record, 0, piece))
	}
	last := len(l.pieces) - 1
	l.pieces[last] = append(l.pieces[last], r)
	l.n++
}

func (l *log) all() func(yield func(record) bool) {
	return func(yield func(record) bool) {
		for _, p := range l.pieces {
			for _, r := range p {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// recordSize is what a record takes on the way to the parent.
const recordSize = 4 * 8

func (r record) encode(to []byte, goroutine int) {
	for i, n := range []int64{int64(goroutine), r.asked, r.granted, r.unlocking} {
		binary.LittleEndian.PutUint64(to[8*i:], uint64(n))
	}
}

func decode(from []byte, process int) record {
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(from[8*i:])) }
	return record{holder: holder{process, int(at(0))}, asked: at(1), granted: at(2), unlocking: at(3)}
}

// process is a child, seen from its parent.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startProcess starts a child, which ends with ctx.
func startProcess(ctx context.Context, j job) (*process, error) {
	how, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(how))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for the parent
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 1<<20)
	return p, p.cmd.Start()
}

// answer reads what the child says next.
func (p *process) answer() (a answer, err error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("a process has ended: %w", err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// result reads the child's last answer and its records.
func (p *process) result(number int) (answer, []record, error) {
	a, err := p.answer()
	if err != nil {
		return a, nil, err
	}
	records := make([]record, a.Records)
	var line [recordSize]byte
	for i := range records {
		if _, err := io.ReadFull(p.out, line[:]); err != nil {
			return a, nil, err
		}
		records[i] = decode(line[:], number)
	}
	return a, records, nil
}

// runCell measures a contestant once, on a lock that nobody had before.
func runCell(ctx context.Context, c cell, on servers, lock string, during time.Duration) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout+lead+during+endTimeout+closeTimeout)
	defer cancel()
	var processes []*process
	defer func() {
		cancel() // kills whoever is there still
		for _, p := range processes {
			_ = p.cmd.Wait()
		}
	}()
	j := job{c.contestant.backend, c.contestant.name, on.addrs(), lock, c.arrangement.goroutines}
	for range c.arrangement.processes {
		p, err := startProcess(ctx, j)
		if err != nil {
			return sample{}, err
		}
		processes = append(processes, p)
	}
	for _, p := range processes {
		if _, err := p.answer(); err != nil {
			return sample{}, err
		}
	}
	before, err := on.count(ctx, c.contestant.sends)
	if err != nil {
		return sample{}, err
	}
	start := monotonic() + int64(startIn)
	told := orders{start, start + int64(lead+during)}
	line, err := json.Marshal(told)
	if err != nil {
		return sample{}, err
	}
	for _, p := range processes {
		if _, err := p.in.Write(append(line, '\n')); err != nil {
			return sample{}, err
		}
	}
	// Nobody reads before the end: that would cost the contestants time.
	select {
	case <-time.After(untilMonotonic(told.Until)):
	case <-ctx.Done():
		return sample{}, ctx.Err()
	}
	var (
		all    []record
		counts = make([]answer, len(processes))
	)
	for i, p := range processes {
		a, records, err := p.result(i)
		if err != nil {
			return sample{}, err
		}
		all, counts[i] = append(all, records...), a
	}
	after, err := on.count(ctx, c.contestant.sends)
	if err != nil {
		return sample{}, err
	}
	for _, p := range processes {
		p.in.Close()
	}
	for _, p := range processes {
		_, _ = io.Copy(io.Discard, p.out) // until it has ended
		_ = p.cmd.Wait()
	}
	processes = nil
	s := evaluate(all, window{told.Start + int64(lead), told.Until}, c.arrangement.processes*c.arrangement.goroutines)
	s.perGrant(before, after, all)
	for _, a := range counts {
		s.failed += a.Failed
		s.failure = cmp.Or(s.failure, a.Failure)
		if a.Broken > 0 && s.fault == "" {
			s.fault = fmt.Sprintf("%d unlocks failed: %s", a.Broken, a.Broke)
		}
	}
	return s, nil
}
