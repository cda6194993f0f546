package testenv

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

var basebackup = dependency{"pg_basebackup", "postgresql", ""}

// Standby is a PostgreSQL that replicates another.
type Standby struct{ *DatabaseServer }

// OwnPostgresPair starts a PostgreSQL for this test, with these additional
// arguments, and a synchronous standby: a COMMIT on the primary waits until the
// standby has received it.
func OwnPostgresPair(t T, args ...string) (primary *DatabaseServer, standby Standby) {
	t.Helper()
	primary = OwnPostgres(t, args...)
	copied := own(t, "a standby", func() (*DatabaseServer, error) { return newStandby(primary) })
	check(t, "a standby", copied.start())
	for _, statement := range []string{
		"ALTER SYSTEM SET synchronous_standby_names = '*'",
		"SELECT pg_reload_conf()",
	} {
		check(t, "a standby", onDatabase(context.Background(), primary.admin, statement))
	}
	check(t, "a standby", primary.awaitStandby())
	return primary, Standby{copied}
}

// awaitStandby waits until the server has a synchronous standby.
func (s *DatabaseServer) awaitStandby() error {
	return await(maxStart, func(ctx context.Context) error {
		return onDatabase(ctx, s.admin, "SELECT 1 / (count(*) FILTER (WHERE sync_state = 'sync')) FROM pg_stat_replication")
	})
}

// newStandby prepares a standby from a copy of the primary. It does not start it.
func newStandby(primary *DatabaseServer) (*DatabaseServer, error) {
	path, err := lookPath(basebackup, postgresFolders)
	if err != nil {
		return nil, err
	}
	owner := primary.process.owner
	folder, port, err := env.newPlace("standby", owner)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "-d", primary.admin+"?sslmode=disable", "-D", filepath.Join(folder, "data"), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = "/", owner.attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd.Path, err, out)
	}
	server, err := lookPath(postgres, postgresFolders)
	if err != nil {
		return nil, err
	}
	s := newPostgres(server, folder, port, owner, "-c", "synchronous_standby_names=")
	s.url = strings.Replace(primary.url, primary.Addr(), port.addr(), 1)
	return s, nil
}

// Promote makes the standby a primary without a standby.
func (s Standby) Promote() {
	must(onDatabase(context.Background(), s.admin, "SELECT pg_promote()"))
}
