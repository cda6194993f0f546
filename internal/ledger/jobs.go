package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

// JobLease is how long a claim or a renewal of a job lasts, by the database's clock.
const JobLease = 3 * time.Second

// Job is a claim of a job. A job is work that only one instance of the cluster may do at a time.
type Job struct {
	Name   string
	Holder string // identifies one run of one process
	Token  int64  // rises with every claim, and never with a renewal
}

var (
	// ErrJobHeld means that another instance holds the job.
	ErrJobHeld = errors.New("another instance holds the job")
	// ErrJobLost means that another instance has claimed the job since.
	ErrJobLost = errors.New("another instance has claimed the job")
)

// ClaimJob claims the job for JobLease. It returns ErrJobHeld if the last lease has not ended, or
// another instance claims the job at the same time.
func (l *Ledger) ClaimJob(ctx context.Context, name, holder string) (Job, error) {
	var (
		d     = l.db.Dialect()
		token int64 // token of the last claim; 0: the job was not claimed
		free  bool
	)
	err := l.db.QueryRow(ctx, []any{&token, &free}, "SELECT token, held_until <= "+d.Now()+" FROM jobs WHERE name = ?", name)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err = l.db.Exec(ctx, "INSERT INTO jobs (name, holder, token, held_until) VALUES (?, ?, 1, "+d.After(JobLease)+")", name, holder)
		if sqltx.IsDuplicate(err) {
			err = ErrJobHeld
		}
	case err == nil && !free:
		err = ErrJobHeld
	case err == nil:
		var claimed int64
		claimed, err = l.db.Exec(ctx, "UPDATE jobs SET holder = ?, token = token + 1, held_until = "+d.After(JobLease)+
			" WHERE name = ? AND token = ? AND held_until <= "+d.Now(), holder, name, token)
		if err == nil && claimed == 0 {
			err = ErrJobHeld
		}
	}
	if err != nil {
		return Job{}, fmt.Errorf("claiming the job %s: %w", name, err)
	}
	return Job{name, holder, token + 1}, nil
}

// Jobs reads the jobs that are held, sorted by name.
func (l *Ledger) Jobs(ctx context.Context) (held []Job, err error) {
	held, err = sqltx.ReadAll(ctx, l.db, func(j *Job) []any { return []any{&j.Name, &j.Holder, &j.Token} },
		"SELECT name, holder, token FROM jobs WHERE held_until > "+l.db.Dialect().Now()+" ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("reading the jobs: %w", err)
	}
	return held, nil
}

// RenewJob makes the lease of the job end JobLease from now, even if it has ended already. It
// returns ErrJobLost if another instance has claimed the job.
func (l *Ledger) RenewJob(ctx context.Context, j Job) error {
	return setLease(ctx, l.db, j, JobLease)
}

// ReleaseJob ends the lease, so that another instance can claim the job at once. It returns
// ErrJobLost if another instance has claimed the job already.
func (l *Ledger) ReleaseJob(ctx context.Context, j Job) error {
	return setLease(ctx, l.db, j, 0)
}

// setLease makes the lease of the job end after the given time. It returns ErrJobLost if another
// instance has claimed the job. It compares the holder too, because a ledger that was restored from
// a backup grants tokens again.
//
// If called in a transaction of the job's work, it locks the job's row, so that no instance can
// claim the job before the transaction ends. Transactions that have locked a job never wait for
// stock rows.
func setLease(ctx context.Context, db execer, j Job, lease time.Duration) error {
	d := db.Dialect()
	affected, err := db.ExecAll(ctx, sqltx.Statement{
		SQL:  "UPDATE jobs SET held_until = " + d.After(lease) + " WHERE name = ? AND holder = ? AND token = ?",
		Args: []any{j.Name, j.Holder, j.Token},
	})
	if err == nil && affected[0] == 0 {
		err = ErrJobLost
	}
	if err != nil {
		return fmt.Errorf("holding the job %s: %w", j.Name, err)
	}
	return nil
}
