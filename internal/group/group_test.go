package group_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/group"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type call struct{ n, answer int }

func double(cs []*call) {
	for _, c := range cs {
		c.answer = 2 * c.n
	}
}

func TestEveryCallGetsItsOwnAnswer(t *testing.T) {
	t.Parallel()
	b := group.New(group.Limits{Size: 8, Parallel: 2, Queue: 1000}, nil, double)
	defer b.Close()
	var calls sync.WaitGroup
	for i := range 500 {
		calls.Go(func() {
			c := &call{n: i}
			if err := b.Do(t.Context(), c); err != nil {
				t.Error(err)
			}
			if c.answer != 2*i {
				t.Errorf("call %d got the answer %d, want %d", i, c.answer, 2*i)
			}
		})
	}
	calls.Wait()
}

// blocked returns a Batcher with one worker. The worker is blocked in its first group, {0}, until
// release is called. groups returns the groups that have run.
func blocked(t *testing.T, limits group.Limits, weight func(int) int) (b *group.Batcher[int], release func(), groups func() [][]int) {
	t.Helper()
	var (
		mu      sync.Mutex
		ran     [][]int
		blocks  = make(chan struct{})
		started = make(chan struct{})
		once    sync.Once
	)
	limits.Parallel = 1
	b = group.New(limits, weight, func(values []int) {
		once.Do(func() { close(started) })
		<-blocks
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, append([]int(nil), values...))
	})
	if err := b.Send(0); err != nil {
		t.Fatal(err)
	}
	<-started
	release = sync.OnceFunc(func() { close(blocks) })
	t.Cleanup(func() { release(); b.Close() })
	return b, release, func() [][]int {
		mu.Lock()
		defer mu.Unlock()
		return ran
	}
}

func TestGroupsGatherWhileOneRuns(t *testing.T) {
	t.Parallel()
	b, release, groups := blocked(t, group.Limits{Size: 3, Queue: 10}, nil)
	for i := 1; i <= 5; i++ {
		if err := b.Send(i); err != nil {
			t.Fatal(err)
		}
	}
	release()
	b.Close()
	equal(t, groups(), [][]int{{0}, {1, 2, 3}, {4, 5}})
}

func TestWeightBoundsGroups(t *testing.T) {
	t.Parallel()
	b, release, groups := blocked(t, group.Limits{Size: 10, Queue: 10, Weight: 5}, func(v int) int { return v })
	for _, v := range []int{2, 3, 1, 9, 4} {
		if err := b.Send(v); err != nil {
			t.Fatal(err)
		}
	}
	release()
	b.Close()
	equal(t, groups(), [][]int{{0}, {2, 3}, {1}, {9}, {4}})
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	b, _, _ := blocked(t, group.Limits{Size: 1, Queue: 2}, nil)
	for range 2 {
		if err := b.Send(1); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Do(t.Context(), 1); !errors.Is(err, group.ErrFull) {
		t.Errorf("error %v, want ErrFull", err)
	}
}

func TestCallRunsAfterItsContextEnds(t *testing.T) {
	t.Parallel()
	b, release, groups := blocked(t, group.Limits{Size: 10, Queue: 10}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Do(ctx, 7); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	release()
	b.Close()
	equal(t, groups(), [][]int{{0}, {7}})
}

func TestCloseRunsQueuedCalls(t *testing.T) {
	t.Parallel()
	var b *group.Batcher[int]
	synctest.Test(t, func(t *testing.T) {
		var ran atomic.Int64
		b = group.New(group.Limits{Size: 4, Parallel: 2, Queue: 100}, nil, func(vs []int) {
			time.Sleep(time.Millisecond) // on the fake clock: Close then finds calls in the queue
			ran.Add(int64(len(vs)))
		})
		for range 50 {
			if err := b.Send(1); err != nil {
				t.Fatal(err)
			}
		}
		b.Close()
		b.Close() // a second call has no further effect
		if ran.Load() != 50 {
			t.Errorf("ran %d calls, want 50", ran.Load())
		}
	})
	// Outside synctest, because Do pools a channel that other tests use.
	if err := b.Do(t.Context(), 1); !errors.Is(err, group.ErrClosed) {
		t.Errorf("error %v after Close, want ErrClosed", err)
	}
}

func equal(t *testing.T, got, want [][]int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if len(got[i]) != len(want[i]) {
			t.Fatalf("got %v, want %v", got, want)
		}
		for j := range want[i] {
			if got[i][j] != want[i][j] {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
}

func BenchmarkDo(b *testing.B) {
	g := group.New(group.Limits{Size: 128, Parallel: 2, Queue: 4096}, nil, double)
	defer g.Close()
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := g.Do(context.Background(), &call{n: 1}); err != nil {
				b.Error(err)
			}
		}
	})
}

// TestAbandonedCall checks that the signal of a call whose context ended does not
// reach the next call. The test is not parallel: with a single processor,
// sync.Pool returns the channel that was put last.
func TestAbandonedCall(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	started, proceed := make(chan int), make(chan struct{})
	b := group.New(group.Limits{Size: 1, Parallel: 1, Queue: 2}, nil, func(calls []int) {
		started <- calls[0]
		<-proceed
	})
	if err := b.Do(ended, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v of a call whose context has ended, want context.Canceled", err)
	}
	if err := b.Send(2); err != nil {
		t.Fatal(err)
	}
	<-started
	proceed <- struct{}{}
	<-started // the second call runs: the first was signalled
	waiting, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.Do(waiting, 3); err == nil {
		t.Error("Do returned before the call ran")
	}
	close(proceed)
	<-started
	b.Close()
}

// TestParallel checks that Do returns after its group has run, and that several groups run at the same
// time.
func TestParallel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const parallel = 3
		var (
			mu            sync.Mutex
			running, most int
		)
		run := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
		}
		b := group.New(group.Limits{Size: 1, Parallel: parallel, Queue: 2 * parallel}, nil, func(answers []*bool) {
			run(1)
			time.Sleep(time.Second) // in a bubble
			run(-1)
			*answers[0] = true
		})
		defer b.Close()
		var calls sync.WaitGroup
		for range 2 * parallel {
			calls.Go(func() {
				var answered bool
				if err := b.Do(t.Context(), &answered); err != nil || !answered {
					t.Errorf("answered %v, %v", answered, err)
				}
			})
		}
		calls.Wait()
		if most != parallel {
			t.Errorf("%d groups ran at the same time, want %d", most, parallel)
		}
	})
}
