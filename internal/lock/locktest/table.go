package locktest

// Row says what one backend promises.
type Row struct {
	Backend string
	// NotOffered has the promises that it does not make, and why.
	NotOffered map[string]string
}

const (
	oneProcess = "it locks within one process and has no server"
	asks       = "waiters ask again, and whoever asks first gets it"
)

// Table returns a row for each backend. What a row does not name is promised.
func Table() []Row {
	return []Row{
		{Backend: "local", NotOffered: map[string]string{
			"OrderBetweenProcesses": oneProcess, "ProcessesExclude": oneProcess, "WaiterCancelledAtEachStep": oneProcess,
			"KilledHolder": oneProcess, "StoppedHolder": oneProcess, "HolderCutOff": oneProcess, "WaiterCutOff": oneProcess,
			"ConnectionCut": oneProcess, "ResumesAfterRestart": oneProcess, "HeldThroughRestart": oneProcess,
		}},
		{Backend: "redis", NotOffered: map[string]string{
			"OrderBetweenProcesses": asks,
			"HeldThroughRestart":    "a Redis that comes back without its data has forgotten its locks; so has a replica that lags when it takes over",
		}},
		{Backend: "redlock", NotOffered: map[string]string{
			"OrderBetweenProcesses": asks,
			"TokensRise":            "the algorithm gives no number that rises",
			"HeldThroughRestart":    "most of its servers coming back without their data have forgotten its locks",
		}},
		{Backend: "zookeeper"},
		{Backend: "etcd"},
	}
}

// Offers reports whether the backend makes the promise, and if not why.
func (r Row) Offers(p Promise) (bool, string) {
	why, not := r.NotOffered[p.Name]
	return !not, why
}
