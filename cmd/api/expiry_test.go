package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// holds reports whether the instance's metrics show that it holds the job that expires orders.
func holds(t *testing.T, api instance) bool {
	t.Helper()
	// Request only the needed metric: tests poll this, and there are thousands.
	metrics := mustCall(t, http.StatusOK, http.MethodGet, api.URL()+"/metrics?name[]=holdfast_job_held", "", "Accept-Encoding", "identity")
	return strings.Contains(string(metrics), `holdfast_job_held{name="expiry"} 1`)
}

// TestExpiry_HolderEnds ends or stops the instance that expires orders. Another one must take over
// within seconds, as after a kill. A stopped instance that resumes must do no harm.
func TestExpiry_HolderEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		on    pair
		start func(t *testing.T, args []string) instance
		end   func(t *testing.T, holder instance)
	}{
		{"stopped", postgresAndRedis, func(t *testing.T, args []string) instance { return startProcess(t, args...) }, func(_ *testing.T, holder instance) { holder.(*testenv.APIServer).Stop() }},
		{"ended", mariaDBAndRedis, func(t *testing.T, args []string) instance { return serveHere(t, args...) }, func(t *testing.T, holder instance) {
			holder.Interrupt()
			if code := holder.Wait(); code != 0 {
				t.Errorf("exit code %d: %s", code, holder.Output())
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"--payment-window", "1s"}, migrated(t, test.on.flags(t))...)
			holder, other := test.start(t, args), test.start(t, args)
			setStock(t, holder.URL(), "hot", 10)
			// An instance may lose the job while the machine is too busy to renew it.
			find := func() {
				t.Helper()
				testenv.Await(t, "one instance says that it holds the job, and not both", func() bool {
					if holds(t, other) {
						holder, other = other, holder
					}
					return holds(t, holder) && !holds(t, other)
				})
			}
			find()
			sell := func(api instance, from string) {
				t.Helper()
				for range 3 {
					mustCall(t, http.StatusCreated, http.MethodPost, api.URL()+"/orders", orderBody(from, "hot", 1))
				}
				testenv.Await(t, "the units are back", func() bool {
					a, err := audited(t.Context(), api.URL(), "hot")
					return err == nil && a.atRest() && a.Sold == 0
				})
			}
			sell(holder, "first")
			find()
			test.end(t, holder)
			sell(other, "second")
			testenv.Await(t, "the other instance holds the job", func() bool { return holds(t, other) })
			if test.name != "stopped" {
				return
			}
			holder.(*testenv.APIServer).Cont()
			testenv.Await(t, "the instance that was stopped knows that it lost the job", func() bool { return !holds(t, holder) })
			sell(holder, "third")
			find()
		})
	}
}
