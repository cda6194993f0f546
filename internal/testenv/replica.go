package testenv

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// Replica is a MariaDB that replicates another, and is read-only.
type Replica struct{ *DatabaseServer }

// OwnMariaDBPair starts a MariaDB for this test, and a replica. A COMMIT on the primary waits until
// the replica has received it. The rows of the COMMIT are not visible before.
func OwnMariaDBPair(t T) (primary *DatabaseServer, replica Replica) {
	t.Helper()
	semiSync := []string{"--log-bin=binlog", "--binlog-format=ROW", "--rpl-semi-sync-slave-enabled=ON",
		"--rpl-semi-sync-master-wait-point=AFTER_SYNC", "--rpl-semi-sync-master-timeout=3600000"}
	primary = OwnMariaDB(t, append(semiSync, "--server-id=1")...)
	copied := own(t, "a replica", func() (*DatabaseServer, error) {
		return startMariaDB(append(semiSync, "--server-id=2", "--read-only=ON")...)
	})
	replica = Replica{copied}
	copied.url = strings.Replace(primary.url, primary.Addr(), copied.Addr(), 1)
	for _, statement := range []string{
		fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %d, MASTER_USER = 'root', MASTER_USE_GTID = slave_pos", primary.ports[0].number),
		"START SLAVE",
	} {
		check(t, "a replica", onDatabase(context.Background(), copied.admin, statement))
	}
	check(t, "a replica", onDatabase(context.Background(), primary.admin, "SET GLOBAL rpl_semi_sync_master_enabled = ON"))
	check(t, "a replica", await(maxStart, func(ctx context.Context) error {
		status, err := primary.show(ctx, "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'")
		if err == nil && status["Value"] != "1" {
			err = fmt.Errorf("the primary waits for %s replicas", status["Value"])
		}
		return err
	}))
	return primary, replica
}

// Promote makes the replica a primary without a replica, once it has applied everything that it has
// received.
func (r Replica) Promote() {
	run := func(statement string) { must(onDatabase(context.Background(), r.admin, statement)) }
	run("STOP SLAVE IO_THREAD")
	must(await(maxStart, func(ctx context.Context) error {
		received, err := r.show(ctx, "SHOW SLAVE STATUS")
		if err != nil {
			return err
		}
		applied, err := r.show(ctx, "SELECT @@gtid_slave_pos AS position")
		if err == nil && applied["position"] != received["Gtid_IO_Pos"] {
			err = fmt.Errorf("the replica has received %s and applied %s", received["Gtid_IO_Pos"], applied["position"])
		}
		return err
	}))
	run("STOP SLAVE")
	run("RESET SLAVE ALL")
	run("SET GLOBAL read_only = OFF")
}

// show returns the first row of a statement, by the names of its columns.
func (s *DatabaseServer) show(ctx context.Context, statement string) (map[string]string, error) {
	driver, source, err := DataSource(s.admin)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	values := make([]sql.NullString, len(columns))
	targets := make([]any, len(columns))
	for n := range values {
		targets[n] = &values[n]
	}
	if !rows.Next() {
		return nil, fmt.Errorf("%s has no row: %w", statement, rows.Err())
	}
	if err := rows.Scan(targets...); err != nil {
		return nil, err
	}
	row := make(map[string]string)
	for n, column := range columns {
		row[column] = values[n].String
	}
	return row, nil
}
