package ledger

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// claim claims the job for the holder.
func claim(t *testing.T, l *Ledger, name, holder string) Job {
	t.Helper()
	j, err := l.ClaimJob(t.Context(), name, holder)
	if err != nil {
		t.Fatal(err)
	}
	if j.Name != name || j.Holder != holder {
		t.Fatalf("claimed %+v, want %s for %s", j, name, holder)
	}
	return j
}

// outlive ends the lease of the job now.
func outlive(t *testing.T, d *database, name string) {
	t.Helper()
	db := d.sql.Ledger()
	exec(t, db, "UPDATE jobs SET held_until = "+db.Dialect().After(-time.Second)+" WHERE name = ?", name)
}

// TestJobs checks who holds a job, and that its token rises with every claim.
func TestJobs(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		ctx := t.Context()
		first := claim(t, l, "job", "a")
		for _, holder := range []string{"a", "b"} {
			if j, err := l.ClaimJob(ctx, "job", holder); !errors.Is(err, ErrJobHeld) {
				t.Errorf("%s claimed a job that is held: %+v, %v", holder, j, err)
			}
		}
		if other := claim(t, l, "other job", "b"); other.Token != 1 {
			t.Errorf("the first claim of another job has token %d", other.Token)
		}
		held := func(want ...string) {
			t.Helper()
			jobs, err := l.Jobs(ctx)
			names := make([]string, len(jobs))
			for n, j := range jobs {
				names[n] = j.Name
			}
			if err != nil || !slices.Equal(names, want) {
				t.Errorf("%q are held, %v, want %q", names, err, want)
			}
		}
		held("job", "other job")
		if err := l.RenewJob(ctx, first); err != nil {
			t.Error(err)
		}
		outlive(t, d, "job")
		held("other job")
		if err := l.RenewJob(ctx, first); err != nil {
			t.Errorf("renewing after the lease, before another claim: %v", err)
		}
		if _, err := l.ClaimJob(ctx, "job", "b"); !errors.Is(err, ErrJobHeld) {
			t.Errorf("claiming a renewed job: %v", err)
		}
		outlive(t, d, "job")
		second := claim(t, l, "job", "b")
		if second.Token != first.Token+1 {
			t.Errorf("token %d after %d", second.Token, first.Token)
		}
		for what, call := range map[string]func() error{
			"renewing":  func() error { return l.RenewJob(ctx, first) },
			"releasing": func() error { return l.ReleaseJob(ctx, first) },
			"working":   func() error { return d.work(t, first) },
			"working under another's name": func() error {
				return d.work(t, Job{second.Name, "a", second.Token})
			},
		} {
			if err := call(); !errors.Is(err, ErrJobLost) {
				t.Errorf("%s after another claim: %v", what, err)
			}
		}
		if err := d.work(t, second); err != nil {
			t.Errorf("working as the holder: %v", err)
		}
		if err := l.ReleaseJob(ctx, second); err != nil {
			t.Error(err)
		}
		if third := claim(t, l, "job", "a"); third.Token != second.Token+1 {
			t.Errorf("token %d after %d", third.Token, second.Token)
		}
	})
}

// work runs a transaction of the job.
func (d *database) work(t *testing.T, j Job) error {
	return d.sql.Ledger().Transact(t.Context(), func(tx *sqltx.Tx) error { return setLease(t.Context(), tx, j, JobLease) })
}

// TestJobs_OneClaims lets many instances claim a job at the same time. Exactly one must get it,
// both when the job is new and when its lease has ended.
func TestJobs_OneClaims(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		for want := int64(1); want <= 3; want++ {
			var (
				mu      sync.Mutex
				claimed []Job
				all     sync.WaitGroup
			)
			for range 8 {
				all.Go(func() {
					j, err := l.ClaimJob(t.Context(), "job", uuid.NewString())
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						claimed = append(claimed, j)
					case !errors.Is(err, ErrJobHeld):
						t.Error(err)
					}
				})
			}
			all.Wait()
			if len(claimed) != 1 || claimed[0].Token != want {
				t.Errorf("claimed: %+v, want one claim with token %d", claimed, want)
			}
			outlive(t, d, "job")
		}
	})
}

// TestJobs_ClaimWaitsForWork checks that a job whose lease has ended is not claimed while a
// transaction of its holder is open. A job whose lease has not ended is refused without waiting.
func TestJobs_ClaimWaitsForWork(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		j := claim(t, l, "job", "a")
		outlive(t, d, "job")
		tx := begin(t, d.sql.Ledger())
		if err := setLease(t.Context(), tx, j, time.Hour); err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		go func() {
			_, err := l.ClaimJob(t.Context(), "job", "b")
			answered <- err
		}()
		testenv.Await(t, "the claim waits for the transaction of the holder", func() bool { return d.lockWaits(t) > 0 })
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := testenv.Receive(t, "the claim", answered); !errors.Is(err, ErrJobHeld) {
			t.Errorf("claiming after the transaction renewed the lease: %v", err)
		}
		work := begin(t, d.sql.Ledger())
		if err := setLease(t.Context(), work, j, JobLease); err != nil {
			t.Fatal(err)
		}
		if _, err := l.ClaimJob(t.Context(), "job", "b"); !errors.Is(err, ErrJobHeld) {
			t.Errorf("claiming a job that is held waits for a transaction of the holder: %v", err)
		}
	})
}
