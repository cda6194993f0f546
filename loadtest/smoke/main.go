// Command smoke runs every load generator of this repository for a few seconds against a service
// that it starts. It checks their exit codes. Run it in the module's root, as make loadtest-smoke
// does.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/liar"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

const (
	// buildLimit bounds a build of k6 without a cache on a slow machine.
	buildLimit = 15 * time.Minute
	// runLimit bounds every other command.
	runLimit = 3 * time.Minute
	// thresholdsFailed is k6's exit code for a failed threshold.
	thresholdsFailed = 99
)

func main() { command.Main("smoke", run) }

func run(ctx context.Context, _ []string, stdout, _ io.Writer) error {
	start := time.Now()
	if err := testenv.Run(func(t testenv.T) error { return smoke(ctx, t) }); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "all as expected, in %v\n", time.Since(start).Round(time.Second))
	return nil
}

func smoke(ctx context.Context, t testenv.T) error {
	// The folder is removed with this process, together with the programs that go run builds in it.
	if err := os.Setenv("GOTMPDIR", testenv.Folder(t, "go")); err != nil {
		return err
	}
	fmt.Println("building k6 and vegeta: takes minutes the first time")
	for _, build := range [][]string{tool("k6", "version"), tool("vegeta", "-version")} {
		if err := expect(ctx, buildLimit, 0, "", nil, build...); err != nil {
			return err
		}
	}
	folder := testenv.Folder(t, "smoke")
	if err := k6(ctx, serve(t), folder); err != nil {
		return err
	}
	if err := k6Lifecycle(ctx, serve(t, "--payment-window", "2s"), folder); err != nil {
		return err
	}
	if err := detectsLies(ctx, t, folder); err != nil {
		return err
	}
	if err := detectsOverselling(ctx, serve(t, "--strategy", "none", "--guard", "off"), folder); err != nil {
		return err
	}
	if err := vegeta(ctx, serve(t), folder); err != nil {
		return err
	}
	for _, flags := range []string{"--strategies none,lua,merged --stock 300", "--strategies async,lua --stock 300 --crash=false", "--lifecycle --strategies lua --stock 100 --payment-window 1s"} {
		code, out, err := execute(ctx, runLimit, nil, append([]string{"go", "run", "./loadtest"}, strings.Fields(flags)...)...)
		if err != nil {
			return err
		}
		if code != 0 || bytes.Contains(out, []byte(results.Undecided)) { // an undecided load has proved nothing
			return fmt.Errorf("loadtest %s: exit code %d:\n%s", flags, code, out)
		}
	}
	return nil
}

// serve starts a service with its ledger in a folder that is removed with this process. A fully
// embedded service would leave its own folder behind when it is killed.
func serve(t testenv.T, flags ...string) (url string) {
	ledger := "sqlite://" + filepath.Join(testenv.Folder(t, "ledger"), "ledger.db")
	return testenv.API(t, append([]string{"--db", ledger, "--migrate"}, flags...)...).URL()
}

func tool(name string, args ...string) []string {
	return append([]string{"go", "tool", "-modfile=tools/go.mod", name}, args...)
}

// script returns a command that runs a k6 script, without an API server or usage reports.
func script(name string) []string {
	return tool("k6", "run", "--quiet", "--no-usage-report", "--address", "", "loadtest/k6/"+name)
}

// k6 runs both loads, each followed by the audit.
func k6(ctx context.Context, url, folder string) error {
	summary := filepath.Join(folder, "summary.json")
	for _, load := range []struct {
		script string
		env    []string
		sold   float64 // expected units; 0: any number
	}{
		{"rush.js", []string{"STOCK=300", "PEAK=300", "SECONDS=5", "P99=10000"}, 300},
		{"steady.js", []string{"RATE=50", "SECONDS=4", "P99=10000", "LATE=0.5"}, 0},
	} {
		env := append(load.env, "BASE_URL="+url, "SKU=smoke-"+load.script, "SUMMARY="+summary)
		if err := expect(ctx, runLimit, 0, "", env, script(load.script)...); err != nil {
			return err
		}
		accepted, err := count(summary, "orders_accepted")
		switch {
		case err != nil:
			return err
		case accepted == 0, load.sold > 0 && accepted != load.sold:
			return fmt.Errorf("%s: %v orders were accepted, expected %v", load.script, accepted, load.sold)
		}
		verified := filepath.Join(folder, "verified.json")
		if err := expect(ctx, runLimit, 0, "", append(env, "LOAD="+summary, "SUMMARY="+verified), script("verify.js")...); err != nil {
			return err
		}
		sold, err := count(verified, "sold_units")
		if err != nil {
			return err
		}
		if sold != accepted {
			return fmt.Errorf("%s: %v orders were accepted and %v sold", load.script, accepted, sold)
		}
	}
	return nil
}

// k6Lifecycle runs the lifecycle load, followed by the audit.
func k6Lifecycle(ctx context.Context, url, folder string) error {
	const sku, coupon = "smoke-lifecycle", "smoke-lifecycle-coupon"
	summary := filepath.Join(folder, "lifecycle.json")
	env := []string{"BASE_URL=" + url, "P99=10000"}
	if err := expect(ctx, runLimit, 0, "", append(env, "SKU="+sku, "STOCK=60", "RATE=30", "SECONDS=4", "WINDOW=2", "SUMMARY="+summary), script("lifecycle.js")...); err != nil {
		return err
	}
	// verify.js compares its counts with the summary.
	return expect(ctx, runLimit, 0, "", append(env, "SKU="+sku+","+coupon, "PAYMENTS="+sku+"-", "LOAD="+summary), script("verify.js")...)
}

// detectsLies checks that verify.js fails on a service that places a second order for some repeated
// keys. It checks that rush.js fails on a service that also answers with the second order, and on
// one that refuses every order. The output must name the failed check.
func detectsLies(ctx context.Context, t testenv.T, folder string) error {
	for _, test := range []struct {
		lie  string
		rush int // exit code of rush.js
		says string
		// verify is the text of verify.js's failure. If it is empty, verify.js is not run.
		verify string
	}{
		{"makes-a-second-order-of-one-replay-in-ten", 0, "", "BROKEN unexplained_units: count==0"},
		{"answers-one-replay-in-ten-with-a-second-order", thresholdsFailed, `BROKEN check "the same answer to the same key"`, "BROKEN unexplained_units: count==0"},
		{"refuses-every-order", thresholdsFailed, "BROKEN orders_accepted: count>0", ""}, // its counts agree, so verify.js would pass
	} {
		summary := filepath.Join(folder, test.lie+".json")
		env := []string{"BASE_URL=" + (&liar.Liar{Lie: test.lie}).Serve(t, serve(t)), "SKU=" + test.lie, "STOCK=2000", "PEAK=150", "SECONDS=5", "P99=30000"}
		if err := expect(ctx, runLimit, test.rush, test.says, append(env, "SUMMARY="+summary), script("rush.js")...); err != nil {
			return err
		}
		if test.verify == "" {
			continue
		}
		if err := expect(ctx, runLimit, thresholdsFailed, test.verify, append(env, "LOAD="+summary), script("verify.js")...); err != nil {
			return err
		}
	}
	return nil
}

// detectsOverselling checks that verify.js fails on a strategy that oversells.
func detectsOverselling(ctx context.Context, url, folder string) error {
	var err error
	for try := range 12 { // the strategy oversells only if two requests happen to overlap
		env := []string{"BASE_URL=" + url, fmt.Sprintf("SKU=broken-%d", try), "STOCK=100", "PEAK=1500", "SECONDS=4", "P99=30000",
			"SUMMARY=" + filepath.Join(folder, "broken.json")}
		// rush.js may fail as well, if there are more 201s than units.
		if _, _, err = execute(ctx, runLimit, env, script("rush.js")...); err != nil {
			return err
		}
		if err = expect(ctx, runLimit, thresholdsFailed, "", env, script("verify.js")...); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("verify.js does not detect overselling: %w", err)
}

// vegeta runs vegeta with the targets of loadtest/vegeta.
func vegeta(ctx context.Context, url, folder string) error {
	const sku, units, orders = "smoke-vegeta", 100, 300
	service, err := client.New(url)
	if err != nil {
		return err
	}
	if _, _, err := service.SetStock(ctx, sku, client.Setting{Kind: client.Product, Total: units}); err != nil {
		return err
	}
	code, targets, err := execute(ctx, runLimit, nil, "go", "run", "./loadtest/vegeta", "--url", url, "--sku", sku, "--count", fmt.Sprint(orders))
	if err != nil || code != 0 {
		return fmt.Errorf("making targets: exit code %d: %w", code, err)
	}
	file, answers := filepath.Join(folder, "targets.jsonl"), filepath.Join(folder, "answers.bin")
	if err := os.WriteFile(file, targets, 0o600); err != nil {
		return err
	}
	if err := expect(ctx, runLimit, 0, "", nil, tool("vegeta", "attack", "-format=json", "-targets="+file, "-rate=100", "-duration=3s", "-output="+answers)...); err != nil {
		return err
	}
	code, text, err := execute(ctx, runLimit, nil, tool("vegeta", "report", "-type=json", answers)...)
	if err != nil || code != 0 {
		return fmt.Errorf("vegeta report: exit code %d: %w", code, err)
	}
	var report struct {
		Codes map[string]int `json:"status_codes"`
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return fmt.Errorf("vegeta report: %w: %s", err, text)
	}
	if report.Codes["201"] != units || report.Codes["409"] != orders-units {
		return fmt.Errorf("vegeta: answers %v to %d orders of %d units", report.Codes, orders, units)
	}
	return expect(ctx, runLimit, 0, "", []string{"BASE_URL=" + url, "SKU=" + sku}, script("verify.js")...)
}

// count returns a counter from a summary of k6.
func count(summary, metric string) (float64, error) {
	text, err := os.ReadFile(summary)
	if err != nil {
		return 0, err
	}
	var data struct {
		Metrics map[string]struct {
			Values struct {
				Count *float64 `json:"count"`
			} `json:"values"`
		} `json:"metrics"`
	}
	if err := json.Unmarshal(text, &data); err != nil {
		return 0, err
	}
	value := data.Metrics[metric].Values.Count
	if value == nil {
		return 0, fmt.Errorf("the summary has no %s: %s", metric, text)
	}
	return *value, nil
}

// expect runs a command and fails unless it ends with the exit code want, and its output contains
// the text says.
func expect(ctx context.Context, limit time.Duration, want int, says string, env []string, args ...string) error {
	code, out, err := execute(ctx, limit, env, args...)
	if err != nil {
		return err
	}
	if code != want || !strings.Contains(string(out), says) {
		return fmt.Errorf("%s: exit code %d, expected %d and %q:\n%s", strings.Join(args, " "), code, want, says, out)
	}
	return nil
}

// execute runs a command and returns its exit code and output. The command and its
// processes end with the context.
func execute(ctx context.Context, limit time.Duration, env []string, args ...string) (code int, out []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go tool and go run start further processes
	// go cleans up on SIGINT, but not on SIGTERM.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	err = cmd.Run()
	code = cmd.ProcessState.ExitCode()
	fmt.Printf("%6.1f s  exit code %2d  %s\n", time.Since(start).Seconds(), code, strings.Join(append(env, args...), " "))
	if ctx.Err() != nil {
		return code, nil, fmt.Errorf("%s: %w:\n%s%s", strings.Join(args, " "), ctx.Err(), &stdout, &stderr)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return code, append(stdout.Bytes(), stderr.Bytes()...), nil
	}
	return code, stdout.Bytes(), err
}
