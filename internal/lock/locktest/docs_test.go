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

// page is docs/locks in one language.
type page struct {
	file    string
	heading string            // heading of the column of promises
	every   string            // heading of the promises that every backend makes
	texts   map[string]string // translations, by the promise's name or the English reason; nil: English
}

var pages = []page{
	{"../../../docs/locks.md", "promise", "promise of every backend", nil},
	{"../../../docs/locks.zh-CN.md", "承诺", "所有后端的承诺", chinese},
}

func (p page) text(t *testing.T, key, english string) string {
	t.Helper()
	if p.texts == nil {
		return english
	}
	text := p.texts[key]
	if text == "" {
		t.Errorf("%s has no translation of %q", p.file, key)
	}
	return text
}

// table returns the Markdown tables of promises: those that every backend makes, then
// the others with a column for each backend, and the reasons below.
func (p page) table(t *testing.T) string {
	t.Helper()
	var (
		all, some, why strings.Builder
		notes          = make(map[string]int)
		rows           = locktest.Table()
	)
	fmt.Fprintf(&all, "| %s | |\n|---|---|\n", p.every)
	fmt.Fprintf(&some, "\n| %s | |", p.heading)
	for _, row := range rows {
		fmt.Fprintf(&some, " %s |", row.Backend)
	}
	some.WriteString("\n|---|---|" + strings.Repeat(":-:|", len(rows)) + "\n")
	for _, promise := range locktest.Promises() {
		b, marks := &all, ""
		for _, row := range rows {
			offered, reason := row.Offers(promise)
			if offered {
				marks += " ✓ |"
				continue
			}
			b = &some
			if notes[reason] == 0 {
				notes[reason] = len(notes) + 1
				fmt.Fprintf(&why, "%d. %s\n", notes[reason], p.text(t, reason, reason))
			}
			marks += fmt.Sprintf(" – (%d) |", notes[reason])
		}
		if b == &all {
			marks = ""
		}
		fmt.Fprintf(b, "| `%s` | %s |%s\n", promise.Name, p.text(t, promise.Name, promise.Statement), marks)
	}
	return all.String() + some.String() + "\n" + why.String()
}

const tableBegin, tableEnd = "<!-- promises -->\n", "<!-- /promises -->"

// TestDocsPromises compares the tables in docs with the table that TestConformance
// runs. With -update it rewrites them.
func TestDocsPromises(t *testing.T) {
	t.Parallel()
	for _, p := range pages {
		text := read(t, p.file)
		before, rest, found := strings.Cut(text, tableBegin)
		_, after, ended := strings.Cut(rest, tableEnd)
		if !found || !ended {
			t.Errorf("%s has no markers %q and %q", p.file, tableBegin, tableEnd)
			continue
		}
		want := before + tableBegin + p.table(t) + tableEnd + after
		if text == want {
			continue
		}
		if !*update {
			t.Errorf("%s is out of date; run go test ./internal/lock/locktest -run TestDocsPromises -update", p.file)
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

// TestDocsCode checks that the Go code in docs is the code below, apart from
// comments, and runs it.
func TestDocsCode(t *testing.T) {
	t.Parallel()
	source := comment.ReplaceAllString(read(t, "docs_test.go"), "")
	for _, p := range pages {
		blocks := goBlock.FindAllStringSubmatch(read(t, p.file), -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no Go code", p.file)
		}
		for _, block := range blocks {
			if code := comment.ReplaceAllString(block[1], ""); !strings.Contains(source, code) {
				t.Errorf("%s has code that is not in docs_test.go:\n%s", p.file, code)
			}
		}
	}
	ctx, l := t.Context(), lock.NewLocal()
	var last uint64
	work := func(ctx context.Context, token uint64) error {
		if token <= last {
			t.Errorf("token %d was followed by token %d", last, token)
		}
		last = token
		return ctx.Err()
	}
	if err := errors.Join(underLock(ctx, l, work), underLock(ctx, l, work), oneAtATime(ctx, l, work), twice(ctx, l)); err != nil {
		t.Error(err)
	}
	if err := underLock(ctx, l, func(context.Context, uint64) error { return context.Canceled }); !errors.Is(err, context.Canceled) {
		t.Errorf("underLock returned %v, want the error of its work", err)
	}
	held, err := l.Lock(ctx, "job:nightly")
	if err != nil {
		t.Fatal(err)
	}
	unexpected := func(context.Context, uint64) error { t.Error("the work ran while another held the lock"); return nil }
	if err := errors.Join(oneAtATime(ctx, l, unexpected), held.Unlock(ctx)); err != nil {
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

// The code in docs: underLock, oneAtATime and twice.

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

// chinese has the translations of the promises and of the reasons.
var chinese = map[string]string{
	"OneHolder":                  "已被持有的锁不会再次授予",
	"NoOverlap":                  "多个 goroutine、多个实例争用时，同一时刻只有一个持有者",
	"TryLockHeld":                "锁被持有时，TryLock 立即返回 ErrHeld",
	"NamesApart":                 "不同名字的锁互不影响；一个名字是另一个的前缀（带或不带斜杠）时也一样",
	"InvalidNames":               "无效的名字会被拒绝，错误为 ErrName",
	"UnlockFrees":                "Unlock 之后，下一个等待者获得锁",
	"UnlockTwice":                "第二次 Unlock 返回第一次的结果，也不会释放别人的锁",
	"CancelledContext":           "context 已结束时，不会授予锁",
	"AbandonedWaitLeavesNothing": "等待者的 context 结束后，不留下任何残留",
	"LeaseOutlivesRequest":       "租约不随申请时的 context 结束，并保留其中的值",
	"LeaseEndsWithUnlock":        "Unlock 之后租约的 context 结束，原因不是 ErrLost",
	"Reentrant":                  "已持有锁的所有者可以再次获得它；内层的 Unlock 不释放锁",
	"OwnerInTwoGoroutines":       "同一所有者的多个 goroutine 共享锁，最后一次 Unlock 才释放",
	"OrderWithinProcess":         "同一进程的等待者按申请顺序获得锁",
	"TokensRise":                 "每次授予的栅栏令牌都大于上一次",
	"OrderBetweenProcesses":      "各进程按申请顺序获得锁",
	"ProcessesExclude":           "4 个进程共 32 个争用者，同一时刻只有一个持有者，且令牌递增",
	"CancelledAtAnyMoment":       "请求无论在哪一刻取消，进程内和服务器上都不留下任何残留",
	"KilledHolder":               "持有者被杀死后，租约到期时锁即可用",
	"StoppedHolder":              "被暂停超过租约时长的持有者恢复运行时，会发现自己的 context 已结束",
	"HolderCutOff":               "持有者的网络丢弃所有数据时，它会在租约到期时得知锁已丢失，最多比别人获得锁晚一小段时间；它的 Unlock 不会释放别人的锁",
	"DeletedHolder":              "持有者的键或节点在服务器上被删除，或其会话被服务器结束时，它会在一秒内得知锁已丢失",
	"WaiterCutOff":               "等待者的网络丢弃所有数据时，它在 context 结束后返回，不留下任何残留",
	"ConnectionCut":              "连接被切断的持有者要么仍然排斥别人，要么已得知锁丢失",
	"ResumesAfterRestart":        "所有服务器被杀死并重启之后，可以继续授予锁",
	"HeldThroughRestart":         "锁被持有期间，即使所有服务器被杀死并重启，也不会授予别人，除非持有者已得知锁丢失",

	"it locks within one process and has no server":                                                                                           "只在一个进程内加锁，没有服务器",
	"a release wakes the first waiter, but the first request gets a free lock":                                                                "释放锁时唤醒第一个等待者，但空闲的锁归最先到达的请求",
	"waiters ask again after a release, and the first request gets the lock":                                                                  "锁释放后等待者重新申请，最先到达的请求获得锁",
	"a Redis that restarts without its data has lost its locks, as has a replica that takes over while it lags behind":                        "Redis 丢失数据后重启，锁也随之丢失；复制落后的从库接管时也一样",
	"the holder notices it at its next renewal, within a third of the lease; Redis reports deletions only if keyspace events are switched on": "持有者在下一次续期时（租约的三分之一以内）才会发现；Redis 只有开启键空间通知才会报告删除",
	"the holder notices it when its lease ends, because servers without the key may only have failed":                                         "持有者在租约到期时才会发现：在那之前，缺少这个键的服务器也可能只是出了故障",
	"the algorithm has no rising number":                                                                                                      "算法中没有递增的数",
	"if a majority of the servers restart without their data, the locks are lost":                                                             "多数服务器丢失数据后重启，锁也随之丢失",
	"the server frees the lock as soon as the connection is closed; the holder notices that within a second":                                  "连接一关闭，服务器就释放锁；持有者在一秒内察觉",
}
