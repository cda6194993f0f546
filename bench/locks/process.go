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
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// childEnv is the environment variable that makes the program a child process. Its
// value is a job.
const childEnv = "HOLDFAST_BENCH_LOCKS"

const (
	// startIn is the delay between the parent's message and the common start of all
	// processes.
	startIn = 50 * time.Millisecond
	// lead is how long the processes contend before anything is counted.
	lead = 500 * time.Millisecond
	// openTimeout bounds opening a contestant, including its first grant.
	openTimeout = 30 * time.Second
	// firstTimeout bounds one attempt at the first grant. Some libraries miss the
	// release of a lock, and would wait without end.
	firstTimeout = 2 * time.Second
	// endTimeout bounds the wait for the last grants of a run.
	endTimeout = 30 * time.Second
	// closeTimeout bounds closing a contestant.
	closeTimeout = 10 * time.Second
)

// job is the instruction to a child process.
type job struct {
	Backend, Name string
	Addrs         []string
	Lock          string
	Goroutines    int
}

// schedule is the message that the parent writes to a child's standard input. Its
// times are nanoseconds of the monotonic clock.
type schedule struct{ Start, Until int64 }

// answer is the message that a child writes to standard output: once when it is ready,
// and once when it has finished. The records follow the second one.
type answer struct {
	Error   string `json:",omitempty"`
	Records int    // number of records that follow
	Failed  int    // attempts to lock that failed
	Failure string `json:",omitempty"` // first error of those attempts
	Broken  int    // unlocks that failed
	Broke   string `json:",omitempty"` // first error of those unlocks
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds. It is the same for all processes of
// a machine.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // every supported system has this clock
	}
	return now.Nano()
}

func untilMonotonic(at int64) time.Duration { return time.Duration(at - monotonic()) }

// child runs one process of a contestant and returns its exit code. The process ends
// when its standard input does, so it cannot outlive its parent.
func child(encoded string) (exit int) {
	lines := make(chan string, 1)
	var busy sync.Mutex // held until the contestant can be closed properly
	busy.Lock()
	go func() {
		for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
			lines <- scanner.Text()
		}
		close(lines)
		if !busy.TryLock() {
			os.Exit(1)
		}
	}()
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	send := func(a answer) {
		line, _ := json.Marshal(a) // cannot fail: it consists of numbers and strings
		out.Write(append(line, '\n'))
	}
	fail := func(err error) int {
		send(answer{Error: err.Error()})
		out.Flush()
		return 1
	}
	var j job
	if err := json.Unmarshal([]byte(encoded), &j); err != nil {
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
	send(answer{})
	out.Flush()

	var when schedule
	if err := json.Unmarshal([]byte(<-lines), &when); err != nil {
		return fail(err)
	}
	logs, a := contend(o, j.Goroutines, when)
	send(a)
	for goroutine, log := range logs {
		for _, r := range slices.Concat(*log...) {
			var line [recordSize]byte
			r.encode(line[:], goroutine)
			out.Write(line[:])
		}
	}
	out.Flush()
	busy.Unlock()
	<-lines // closed: the parent has read the servers' counters
	time.AfterFunc(closeTimeout, func() { os.Exit(1) })
	o.close()
	return 0
}

// open opens a contestant and takes the lock once, so that connections and scripts
// exist before the measurement.
func open(c contestant, j job) (opened, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	o, err := c.open(ctx, j.Addrs, j.Lock, j.Goroutines)
	if err != nil {
		return opened{}, err
	}
	for {
		err := lockOnce(ctx, o)
		if err == nil {
			return o, nil
		}
		if ctx.Err() != nil {
			return opened{}, fmt.Errorf("waiting for the first grant: %w", err)
		}
	}
}

func lockOnce(ctx context.Context, o opened) error {
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	unlock, err := o.lock(ctx, 0)
	if err != nil {
		return err
	}
	return unlock()
}

// contend runs the goroutines from the start of the schedule to its end. It returns a
// log for each of them.
func contend(o opened, goroutines int, when schedule) (logs []*log, total answer) {
	// The context has no deadline, because some libraries would shorten their leases to it.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.Sleep(untilMonotonic(when.Start))
	defer time.AfterFunc(untilMonotonic(when.Until), cancel).Stop()
	logs = make([]*log, goroutines)
	answers := make([]answer, goroutines)
	var working sync.WaitGroup
	for i := range logs {
		logs[i] = new(log)
		working.Go(func() { answers[i] = work(ctx, o, i, logs[i]) })
	}
	working.Wait()
	for _, a := range answers {
		total.add(a)
	}
	return logs, total
}

// add adds up the numbers and keeps the first errors.
func (a *answer) add(b answer) {
	a.Records, a.Failed, a.Broken = a.Records+b.Records, a.Failed+b.Failed, a.Broken+b.Broken
	a.Failure, a.Broke = cmp.Or(a.Failure, b.Failure), cmp.Or(a.Broke, b.Broke)
}

// work locks and unlocks until ctx ends. An attempt that fails is repeated, and counts
// as part of the same wait.
func work(ctx context.Context, o opened, goroutine int, log *log) (a answer) {
	for ctx.Err() == nil {
		a.Records++
		r := record{asked: monotonic()}
		var unlock func() error
		for {
			var err error
			if unlock, err = o.lock(ctx, goroutine); err == nil {
				break
			}
			if ctx.Err() != nil {
				log.add(r)
				return a
			}
			a.Failed, a.Failure = a.Failed+1, cmp.Or(a.Failure, err.Error())
			time.Sleep(time.Millisecond)
		}
		r.granted = monotonic()
		r.unlocking = monotonic()
		if err := unlock(); err != nil {
			a.Broken, a.Broke = a.Broken+1, cmp.Or(a.Broke, err.Error())
		}
		log.add(r)
	}
	return a
}

// log holds the records of one goroutine, in pieces, so that it never copies them while
// it grows.
type log [][]record

const pieceSize = 1 << 12

func (l *log) add(r record) {
	last := len(*l) - 1
	if last < 0 || len((*l)[last]) == pieceSize {
		*l = append(*l, make([]record, 0, pieceSize))
		last++
	}
	(*l)[last] = append((*l)[last], r)
}

// recordSize is the size of an encoded record in bytes.
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

// process is a child process, seen from its parent.
type process struct{ *testenv.Child }

// startProcess starts a child process. When ctx ends, the child is killed.
func startProcess(ctx context.Context, j job) (process, error) {
	encoded, err := json.Marshal(j)
	if err != nil {
		return process{}, err
	}
	child, err := testenv.StartSelf(childEnv + "=" + string(encoded))
	if err == nil {
		context.AfterFunc(ctx, func() { _ = child.Kill() }) // Kill fails only if the child has ended
	}
	return process{child}, err
}

// answer reads the child's next message.
func (p process) answer(ctx context.Context) (a answer, err error) {
	line, err := p.Line(ctx)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// result reads the child's last message with its records.
func (p process) result(ctx context.Context, number int) (answer, []record, error) {
	a, err := p.answer(ctx)
	if err != nil {
		return a, nil, err
	}
	records := make([]record, a.Records)
	var line [recordSize]byte
	for i := range records {
		if _, err := io.ReadFull(p, line[:]); err != nil {
			return a, nil, err
		}
		records[i] = decode(line[:], number)
	}
	return a, records, nil
}

// group is the processes of one run.
type group []process

// start starts processes until there are count of them, and waits until all are ready.
func (g *group) start(ctx context.Context, count int, j job) error {
	for range count {
		p, err := startProcess(ctx, j)
		if err != nil {
			return err
		}
		*g = append(*g, p)
	}
	for _, p := range *g {
		if _, err := p.answer(ctx); err != nil {
			return err
		}
	}
	return nil
}

// contend makes the processes contend according to the schedule, and returns when the schedule has
// ended. The parent reads nothing meanwhile, because reading would cost the contestants CPU time.
func (g group) contend(ctx context.Context, when schedule) error {
	line, err := json.Marshal(when)
	if err != nil {
		return err
	}
	for _, p := range g {
		if err := p.Send(string(line)); err != nil {
			return err
		}
	}
	select {
	case <-time.After(untilMonotonic(when.Until)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// results reads the records of all processes.
func (g group) results(ctx context.Context) (total answer, all []record, err error) {
	for i, p := range g {
		a, records, err := p.result(ctx, i)
		if err != nil {
			return total, nil, err
		}
		total.add(a)
		all = append(all, records...)
	}
	return total, all, nil
}

// close lets the processes close their contestants and waits until they have ended.
func (g group) close() {
	var all sync.WaitGroup
	for _, p := range g {
		all.Go(func() { _ = p.Close() }) // the run has its results
	}
	all.Wait()
}

// runCell measures a contestant once. The lock's name must be new.
func runCell(ctx context.Context, c cell, on servers, lock string, duration time.Duration) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout+lead+duration+endTimeout+closeTimeout)
	defer cancel()
	var processes group
	defer func() {
		if err != nil {
			cancel() // kills the processes
		}
		processes.close()
	}()
	j := job{c.contestant.backend, c.contestant.name, on.list.Addrs(), lock, c.arrangement.goroutines}
	if err := processes.start(ctx, c.arrangement.processes, j); err != nil {
		return s, err
	}
	before, err := on.count(ctx, c.contestant.sends)
	if err != nil {
		return s, err
	}
	start := monotonic() + int64(startIn)
	when := schedule{start, start + int64(lead+duration)}
	if err := processes.contend(ctx, when); err != nil {
		return s, err
	}
	total, records, err := processes.results(ctx)
	if err != nil {
		return s, err
	}
	after, err := on.count(ctx, c.contestant.sends)
	if err != nil {
		return s, err
	}
	s = evaluate(records, window{when.Start + int64(lead), when.Until}, c.arrangement.contenders())
	s.perGrant(before, after, records)
	s.failed, s.failure = total.Failed, total.Failure
	if total.Broken > 0 && s.fault == "" {
		s.fault = fmt.Sprintf("%d unlocks failed: %s", total.Broken, total.Broke)
	}
	return s, nil
}
