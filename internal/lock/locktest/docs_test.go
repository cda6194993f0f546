package locktest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
)

var update = flag.Bool("update", false, "rewrite the tables of promises in docs")

// page is one language's docs/locks.
type page struct {
	file    string
	promise string            // the heading of the promises' column
	texts   map[string]string // of promises, by name, and of reasons, by their English; nil: as they are
}

var pages = []page{
	{"../../../docs/locks.md", "promise", nil},
	{"../../../docs/locks.zh-CN.md", "承诺", chinese},
}

func (p page) text(t *testing.T, key, english string) string {
	t.Helper()
	if p.texts == nil {
		return english
	}
	text := p.texts[key]
	if text == "" {
		t.Errorf("%s has no words for %q", p.file, key)
	}
	return text
}

// table has a row for each promise and a column for each backend.
func (p page) table(t *testing.T) string {
	t.Helper()
	var (
		b       strings.Builder
		reasons []string
		notes   = make(map[string]int)
		rows    = locktest.Table()
	)
	fmt.Fprintf(&b, "| %s | |", p.promise)
	for _, row := range rows {
		fmt.Fprintf(&b, " %s |", row.Backend)
	}
	b.WriteString("\n|---|---|" + strings.Repeat(":-:|", len(rows)) + "\n")
	for _, promise := range locktest.Promises() {
		fmt.Fprintf(&b, "| `%s` | %s |", promise.Name, p.text(t, promise.Name, promise.Says))
		for _, row := range rows {
			offered, why := row.Offers(promise)
			if offered {
				b.WriteString(" ✓ |")
				continue
			}
			if notes[why] == 0 {
				reasons = append(reasons, why)
				notes[why] = len(reasons)
			}
			fmt.Fprintf(&b, " – (%d) |", notes[why])
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for i, why := range reasons {
		fmt.Fprintf(&b, "%d. %s\n", i+1, p.text(t, why, why))
	}
	return b.String()
}

const tableBegin, tableEnd = "<!-- promises -->\n", "<!-- /promises -->"

// TestDocsPromises holds the tables in docs against the table that the tests
// run. With -update it writes them.
func TestDocsPromises(t *testing.T) {
	t.Parallel()
	for _, p := range pages {
		text := read(t, p.file)
		before, rest, found := strings.Cut(text, tableBegin)
		_, after, ended := strings.Cut(rest, tableEnd)
		if !found || !ended {
			t.Errorf("%s has no %s…%s", p.file, tableBegin, tableEnd)
			continue
		}
		want := before + tableBegin + p.table(t) + tableEnd + after
		if text == want {
			continue
		}
		if !*update {
			t.Errorf("%s has another table than the tests: go test ./internal/lock/locktest -run TestDocsPromises -update", p.file)
			continue
		}
		if err := os.WriteFile(p.file, []byte(want), 0o644); err != nil {
			t.Error(err)
		}
	}
}

var (
	goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")
	comment = regexp.MustCompile(`(?m)[ \t]*//.*$`)
)

// TestDocsCode: the Go code in docs stands below, but for its comments.
func TestDocsCode(t *testing.T) {
	t.Parallel()
	source := comment.ReplaceAllString(read(t, "docs_test.go"), "")
	for _, p := range pages {
		blocks := goBlock.FindAllStringSubmatch(read(t, p.file), -1)
		if len(blocks) == 0 {
			t.Errorf("%s shows no code", p.file)
		}
		for _, block := range blocks {
			if code := comment.ReplaceAllString(block[1], ""); !strings.Contains(source, code) {
				t.Errorf("%s shows code that is not compiled here:\n%s", p.file, code)
			}
		}
	}
	ctx, l := t.Context(), lock.NewLocal()
	var last uint64
	work := func(ctx context.Context, token uint64) error {
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
		return ctx.Err()
	}
	if err := errors.Join(underLock(ctx, l, work), underLock(ctx, l, work), oneAtATime(ctx, l, work), twice(ctx, l)); err != nil {
		t.Error(err)
	}
	if err := underLock(ctx, l, func(context.Context, uint64) error { return context.Canceled }); !errors.Is(err, context.Canceled) {
		t.Errorf("the work's error came out as %v", err)
	}
	held, err := l.Lock(ctx, "job:nightly")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(context.Context, uint64) error { t.Error("it ran beside another"); return nil }
	if err := errors.Join(oneAtATime(ctx, l, refused), held.Unlock(ctx)); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func underLock(ctx context.Context, locker lock.Locker, work func(ctx context.Context, token uint64) error) (err error) {
	waiting, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	lease, err := locker.Lock(waiting, "stock:10001")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return work(lease.Context(), lease.Token())
}

func oneAtATime(ctx context.Context, locker lock.Locker, work func(ctx context.Context, token uint64) error) (err error) {
	lease, err := locker.TryLock(ctx, "job:nightly")
	if errors.Is(err, lock.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return work(lease.Context(), lease.Token())
}

func twice(ctx context.Context, locker lock.Locker) (err error) {
	outer, err := locker.Lock(lock.WithOwner(ctx, "request-17"), "stock:10001")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outer.Unlock(ctx)) }()
	inner, err := locker.Lock(outer.Context(), "stock:10001")
	if err != nil {
		return err
	}
	return inner.Unlock(ctx)
}

// chinese has the promises, and why a backend does not make one.
var chinese = map[string]string{
	"OneHolder":                 "已被持有的锁不会再次授予",
	"NoOverlap":                 "多个 goroutine、多个实例争用时，同一时刻只有一个持有者",
	"TryLockHeld":               "TryLock 立即返回 ErrHeld",
	"NamesApart":                "不同名字的锁互不相干",
	"UnlockFrees":               "Unlock 放行下一个等待者",
	"UnlockTwice":               "第二次 Unlock 返回第一次的结果，也不会释放别人的锁",
	"EndedContext":              "已结束的 context 上什么也不会授予",
	"GivingUpLeavesNothing":     "放弃等待的人什么也不留下",
	"LeaseOutlivesItsAsking":    "租约不随申请时的 context 结束，并保留其中的值",
	"LeaseEndsWithUnlock":       "Unlock 之后租约的 context 结束，且不算丢失",
	"Reentrant":                 "所有者已持有锁时会再次获得它；内层的 Unlock 不释放锁",
	"OwnerInTwoGoroutines":      "同一所有者的两个 goroutine 共享锁，最后一次 Unlock 才释放",
	"OrderWithinProcess":        "同一进程的等待者按申请顺序获得锁",
	"TokensRise":                "每次授予的栅栏令牌都大于上一次",
	"OrderBetweenProcesses":     "各进程按申请顺序获得锁",
	"ProcessesExclude":          "4 个进程中的 32 个争用者，同一时刻只有一个持有者，且令牌递增",
	"WaiterCancelledAtEachStep": "请求无论在哪一刻取消都不留痕迹，服务器上也不留",
	"KilledHolder":              "持有者被杀死后，锁在租约时间内空出",
	"StoppedHolder":             "停顿超过租约的持有者恢复运行时，会发现自己的 context 已结束",
	"HolderCutOff":              "被网络吞没的持有者会得知锁已丢失，不会比别人得到锁晚太多；它的 Unlock 不释放任何人的锁",
	"WaiterCutOff":              "被网络吞没的等待者随自己的 context 放弃，什么也不留下",
	"ConnectionCut":             "连接被切断的持有者要么仍然互斥，要么已得知锁丢失",
	"ResumesAfterRestart":       "所有服务器被杀死并重启之后，争用者继续工作",
	"HeldThroughRestart":        "所有服务器被杀死并重启时，被持有的锁不会授予别人，除非持有者已得知锁丢失",

	"it locks within one process and has no server":                                                                   "只在一个进程内加锁，没有服务器",
	"waiters ask again, and whoever asks first gets it":                                                               "等待者反复申请，谁先问到归谁",
	"a Redis that comes back without its data has forgotten its locks; so has a replica that lags when it takes over": "丢了数据再启动的 Redis 已忘记它的锁；落后的从库接管时也一样",
	"the algorithm gives no number that rises":                                                                        "算法不产生递增的数",
	"most of its servers coming back without their data have forgotten its locks":                                     "多数服务器丢了数据再启动，便已忘记它的锁",
}
