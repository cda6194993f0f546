package locktest

// Row says which promises a backend makes.
type Row struct {
	Backend string
	// NotOffered has the names of the promises that the backend does not make,
	// and the reasons.
	NotOffered map[string]string
}

const (
	oneProcess  = "it locks within one process and has no server"
	noQueue     = "waiters ask again after a release, and the first request gets the lock"
	sessionEnds = "the server frees the lock as soon as the connection is closed; the holder notices that within a second"
	wokenOrder  = "a release wakes the first waiter, but the first request gets a free lock"
)

// Table returns a row for each backend. A backend makes all promises that its row
// does not name.
func Table() []Row {
	return []Row{
		{Backend: "local", NotOffered: map[string]string{
			"OrderBetweenProcesses": oneProcess, "ProcessesExclude": oneProcess, "CancelledAtAnyMoment": oneProcess,
			"KilledHolder": oneProcess, "StoppedHolder": oneProcess, "HolderCutOff": oneProcess, "DeletedHolder": oneProcess, "WaiterCutOff": oneProcess,
			"ConnectionCut": oneProcess, "ResumesAfterRestart": oneProcess, "HeldThroughRestart": oneProcess,
		}},
		{Backend: "redis", NotOffered: map[string]string{
			"OrderBetweenProcesses": wokenOrder,
			"DeletedHolder":         "the holder notices it at its next renewal, within a third of the lease; Redis reports deletions only if keyspace events are switched on",
			"HeldThroughRestart":    "a Redis that restarts without its data has lost its locks, as has a replica that takes over while it lags behind",
		}},
		{Backend: "redlock", NotOffered: map[string]string{
			"OrderBetweenProcesses": noQueue,
			"TokensRise":            "the algorithm has no rising number",
			"DeletedHolder":         "the holder notices it when its lease ends, because servers without the key may only have failed",
			"HeldThroughRestart":    "if a majority of the servers restart without their data, the locks are lost",
		}},
		{Backend: "zookeeper"},
		{Backend: "etcd"},
		{Backend: "mysql", NotOffered: map[string]string{"ConnectionCut": sessionEnds}},
		{Backend: "postgres", NotOffered: map[string]string{"ConnectionCut": sessionEnds}},
	}
}

// Offers reports whether the backend makes the promise. If not, it returns the
// reason.
func (r Row) Offers(p Promise) (bool, string) {
	why, not := r.NotOffered[p.Name]
	return !not, why
}
