package pitfall

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// Stage is where one version runs. It gives the actors their servers and records what they do. It
// is a [testenv.T]: servers that the version starts end with it.
//
// Names of keys and tables begin with a prefix of the run, so that runs on one server do not
// conflict. The timeline shows the names without the prefix.
type Stage struct {
	testenv.T
	servers  Servers
	prefix   string
	ledgerID uuid.UUID // part of the keys of gates
	started  time.Time // time of the first event, when the servers have started
	tidies   bool      // removes the run's keys at the end

	mu     sync.Mutex
	events []results.Event
	ended  bool
}

// perform runs a version on a new stage.
func perform(ctx context.Context, servers Servers, do run) (damage Damage, events []results.Event, err error) {
	id := uuid.New()
	s := &Stage{servers: servers, prefix: "p" + id.String()[:8] + "_", ledgerID: id}
	err = testenv.Part(func(t testenv.T) error {
		s.T = t
		damage = do(ctx, s)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = true
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return damage, s.events, err
}

// check ends the run if there is an error.
func (s *Stage) check(err error) {
	if err != nil {
		s.Fatalf("%v", err)
	}
}

// at adds an event to the timeline, in English and, by the table chinese, in Chinese. It ignores
// events after the end of the run, such as the loss of a lease that was never unlocked.
func (s *Stage) at(actor, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if len(s.events) == 0 {
		s.started = time.Now()
	}
	short := func(text string) string {
		return longNumber.ReplaceAllString(strings.ReplaceAll(text, s.prefix, ""), "…$1")
	}
	s.events = append(s.events, results.Event{
		Millis: float64(time.Since(s.started).Microseconds()) / 1000,
		Actor:  actor, ActorChinese: translate(actor),
		Text: short(fmt.Sprintf(format, args...)), TextChinese: short(translate(format, args...)),
	})
}

// longNumber matches tokens that are a time in microseconds. The timeline shows their
// last digits.
var longNumber = regexp.MustCompile(`\b\d{7,}(\d{6})\b`)

// key returns the name of a key or table in this run.
func (s *Stage) key(name string) string { return s.prefix + name }

// pause waits for d. The experiments use it only where time itself matters, for work that outlasts
// a lease.
func (s *Stage) pause(ctx context.Context, d time.Duration) {
	s.check(retry.Sleep(ctx, d))
}

// await returns as soon as ready returns true. It ends the run after a limit that is far
// beyond every lease.
func (s *Stage) await(ctx context.Context, what string, ready func() bool) {
	testenv.Await(s, what, func() bool {
		s.check(ctx.Err())
		return ready()
	})
}

// redis returns a client of the actor. The timeline shows its commands and their
// answers.
func (s *Stage) redis(ctx context.Context, actor string) redis.UniversalClient {
	client := s.silentRedis(ctx)
	client.AddHook(commandLog{s, actor})
	return client
}

// silentRedis returns a client whose commands are not shown.
func (s *Stage) silentRedis(ctx context.Context) redis.UniversalClient {
	if s.servers[Redis] == "" {
		return s.connect(ctx, testenv.Redis(s))
	}
	client := s.connect(ctx, s.servers[Redis])
	if !s.tidies {
		s.tidies = true
		s.Cleanup(func() { removeKeys(client, s.prefix, s.ledgerID.String()) })
	}
	return client
}

func (s *Stage) connect(ctx context.Context, url string) redis.UniversalClient {
	client, err := store.OpenRedis(ctx, url)
	s.check(err)
	s.Cleanup(func() { _ = client.Close() })
	return client
}

// removeKeys deletes the keys with these parts from a server that keeps running.
func removeKeys(client redis.UniversalClient, parts ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, part := range parts {
		keys := client.Scan(ctx, 0, "*"+part+"*", 1000).Iterator()
		for keys.Next(ctx) {
			_ = client.Unlink(ctx, keys.Val()).Err() // if it fails, a few bytes stay on the server
		}
	}
}

// commandLog is a hook that records the commands of an actor.
type commandLog struct {
	stage *Stage
	actor string
}

func (commandLog) DialHook(next redis.DialHook) redis.DialHook { return next }

func (commandLog) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l commandLog) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if text := commandText(cmd); text != "" {
			l.stage.at(l.actor, "%s → %s", text, answerText(cmd, err))
		}
		return err
	}
}

// commandText returns the command as a user would type it. It is empty for commands that a
// connection sends by itself. For a script it is the comment in the script's first line.
func commandText(cmd redis.Cmder) string {
	words := make([]string, len(cmd.Args()))
	for i, arg := range cmd.Args() {
		words[i] = fmt.Sprint(arg)
	}
	words[0] = strings.ToUpper(words[0])
	switch words[0] {
	case "HELLO", "CLIENT", "AUTH", "SELECT", "PING":
		return ""
	case "EVAL": // script, number of keys, keys, arguments
		first, _, _ := strings.Cut(words[1], "\n")
		return fmt.Sprintf("EVAL “%s” %s", strings.TrimPrefix(first, "-- "), strings.Join(words[3:], " "))
	case "SET":
		for i := 3; i < len(words); i++ {
			words[i] = strings.ToUpper(words[i])
		}
	}
	return strings.Join(words, " ")
}

// answerText returns the answer in the form of redis-cli.
func answerText(cmd redis.Cmder, err error) string {
	switch {
	case errors.Is(err, redis.Nil):
		return "(nil)"
	case err != nil:
		return err.Error()
	}
	switch cmd := cmd.(type) {
	case *redis.BoolCmd:
		if cmd.Args()[0] == "set" {
			return map[bool]string{true: "OK", false: "(nil)"}[cmd.Val()]
		}
		return map[bool]string{true: "1", false: "0"}[cmd.Val()]
	case *redis.IntCmd:
		return fmt.Sprint(cmd.Val())
	case *redis.DurationCmd: // the answer to PTTL
		if cmd.Val() < 0 {
			return fmt.Sprint(int64(cmd.Val()))
		}
		return fmt.Sprint(cmd.Val().Milliseconds())
	case *redis.StringCmd:
		return cmd.Val()
	case *redis.StatusCmd:
		return cmd.Val()
	case *redis.Cmd:
		return fmt.Sprint(cmd.Val())
	}
	return cmd.String()
}

// actorLocker is a Locker of one actor. The timeline shows its requests and releases.
type actorLocker struct {
	inner lock.Locker
	stage *Stage
	actor string
}

// locker adds an actor to a Locker.
func (s *Stage) locker(actor string, l lock.Locker) actorLocker { return actorLocker{l, s, actor} }

// Lock waits for the lock until ctx ends.
func (l actorLocker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.inner.Lock(ctx, name)
	return l.asked(ctx, fmt.Sprintf("Lock(%s)", name), lease, err)
}

// TryLock requests the lock once.
func (l actorLocker) TryLock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.inner.TryLock(ctx, name)
	return l.asked(ctx, fmt.Sprintf("TryLock(%s)", name), lease, err)
}

// asked records the answer to a request.
func (l actorLocker) asked(ctx context.Context, call string, lease lock.Lease, err error) (lock.Lease, error) {
	switch {
	case err == nil:
		l.stage.Cleanup(func() { _ = lease.Unlock(context.WithoutCancel(ctx)) })
		if token := lease.Token(); token != 0 {
			l.stage.at(l.actor, "%s → granted, token %d", call, token)
		} else {
			l.stage.at(l.actor, "%s → granted", call)
		}
	case errors.Is(err, lock.ErrHeld):
		l.stage.at(l.actor, "%s → held", call)
	case errors.Is(err, context.DeadlineExceeded):
		l.stage.at(l.actor, "%s → gives up", call)
	case strings.Contains(err.Error(), "a majority of the servers does not answer"): // the end of the error lists each server
		l.stage.at(l.actor, "%s → refused: a majority of the servers does not answer", call)
	default:
		l.stage.at(l.actor, "%s → %v", call, err)
	}
	return lease, err
}

// Bounds of a request's tries: servers may refuse it a few times after a failure.
const (
	maxTries = 20
	tryPause = 200 * time.Millisecond
)

// again repeats a request until the lock is granted or held.
func (l actorLocker) again(ctx context.Context, request func() (lock.Lease, error)) (lock.Lease, error) {
	for try := 1; ; try++ {
		lease, err := request()
		if err == nil || errors.Is(err, lock.ErrHeld) {
			return lease, err
		}
		if try == maxTries {
			l.stage.check(err)
		}
		l.stage.pause(ctx, tryPause)
	}
}

// lock waits for the lock, and ends the run if it is not granted.
func (l actorLocker) lock(ctx context.Context, name string) lock.Lease {
	lease, err := l.again(ctx, func() (lock.Lease, error) { return l.wait(ctx, name, maxRun) })
	l.stage.check(err)
	return lease
}

// tryLock requests the lock until it is granted or held.
func (l actorLocker) tryLock(ctx context.Context, name string) (lock.Lease, error) {
	return l.again(ctx, func() (lock.Lease, error) { return l.TryLock(ctx, name) })
}

// mustBeHeld requests the lock, which another actor must hold.
func (l actorLocker) mustBeHeld(ctx context.Context, name string) {
	if _, err := l.tryLock(ctx, name); err == nil {
		l.stage.Fatalf("%s has the lock that another holds", l.actor)
	}
}

// wait waits for the lock up to patience.
func (l actorLocker) wait(ctx context.Context, name string, patience time.Duration) (lock.Lease, error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return l.Lock(waiting, name)
}

// unlock ends the lease.
func (l actorLocker) unlock(ctx context.Context, lease lock.Lease) {
	switch err := lease.Unlock(ctx); {
	case err == nil:
		l.stage.at(l.actor, "Unlock → ok")
	case errors.Is(err, lock.ErrLost):
		l.stage.at(l.actor, "Unlock → lost: another may hold the lock")
	default:
		l.stage.at(l.actor, "Unlock → %v", err)
	}
}

// shop has one unit of a product. An order reads the count, and sells a unit by writing the count
// that it read minus one. That is correct only if orders run one at a time.
type shop struct {
	stage *Stage

	mu        sync.Mutex
	available int
	sold      int
}

func (s *Stage) openShop() *shop { return &shop{stage: s, available: 1} }

// read returns the units available.
func (sh *shop) read(actor string) int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.stage.at(actor, "reads the stock: %d", sh.available)
	return sh.available
}

// sell sells a unit if seen, the count that the actor has read, is not 0.
func (sh *shop) sell(actor string, seen int) {
	if seen == 0 {
		sh.stage.at(actor, "refuses the order: sold out")
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.available = seen - 1
	sh.sold++
	sh.stage.at(actor, "writes the stock: %d, sells a unit", sh.available)
}

// sellUnder sells a unit unless the lease has ended.
func (sh *shop) sellUnder(actor string, lease lock.Lease, seen int) {
	if lease.Context().Err() != nil {
		sh.stage.at(actor, "sees that its lease is lost, sells nothing")
		return
	}
	sh.sell(actor, seen)
}

// damage compares the units sold with the stock. Every experiment orders the unit.
func (sh *shop) damage() Damage { return sale(sh.sold, 1) }
