package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/pitfall"
	"github.com/holdfast-stock/holdfast/loadtest/report"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// errUnexpected means that a flawed version did no damage, or that a fixed version did some.
var errUnexpected = errors.New("an experiment did not turn out as expected")

// pitfallSettings are the command line of pitfalls. The tags define the flags.
type pitfallSettings struct {
	List      bool     `help:"List the names, and run nothing."`
	Redis     string   `placeholder:"URL" help:"A Redis, as for the service."`
	DB        string   `placeholder:"URL" help:"A MariaDB or MySQL database, as for the service; tables are created there and dropped."`
	ZooKeeper string   `name:"zookeeper" placeholder:"HOST:PORT" help:"A ZooKeeper server."`
	Language  string   `default:"en" enum:"en,zh-CN" help:"Language of the timelines that are printed: ${enum}."`
	Out       string   `placeholder:"FOLDER" help:"Add the timelines to results.json and report.html in this folder."`
	Names     []string `arg:"" optional:"" name:"name" enum:"${pitfalls}" help:"Only these experiments."`

	chosen []pitfall.Pitfall
}

// Help returns what --help says after the description.
func (pitfallSettings) Help() string {
	return `Without names it runs all of them. A server that is not named by a flag is started, if it is installed; otherwise the experiment is listed as not run.

Exit status: 0 every flaw did its damage and every fix held, 1 one did not or the run failed, 2 usage, 130 interrupted. docs/pitfalls.md explains each of them.`
}

func parsePitfalls(args []string, stdout io.Writer) (*pitfallSettings, error) {
	s := &pitfallSettings{}
	return s, commandline.Parse(s, args, nil, stdout, s.check,
		kong.Name("go run ./loadtest pitfalls"),
		kong.Description("Runs the mistakes that articles about locks and flash sales warn about, and prints for each a timeline, its damage, and the fixes without damage."),
		kong.Vars{"pitfalls": strings.Join(pitfall.Names(), ",")})
}

// check chooses the experiments, and checks the values of the flags.
func (s *pitfallSettings) check(*kong.Context) error {
	s.chosen = slices.DeleteFunc(pitfall.Table(), func(p pitfall.Pitfall) bool {
		return len(s.Names) > 0 && !slices.Contains(s.Names, p.Name)
	})
	if s.DB != "" && !strings.HasPrefix(s.DB, "mysql://") {
		return fmt.Errorf("--db: the experiments use MariaDB or MySQL: expected mysql://…")
	}
	if s.ZooKeeper != "" {
		if _, _, err := net.SplitHostPort(s.ZooKeeper); err != nil {
			return fmt.Errorf("--zookeeper: not host:port, without a user") // the value is not shown, because it may have a password
		}
	}
	if s.Out != "" {
		if err := checkOut(s.Out); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	return nil
}

func runPitfalls(ctx context.Context, args []string, stdout io.Writer) error {
	s, err := parsePitfalls(args, stdout)
	if err != nil {
		return err
	}
	if s.List {
		for _, p := range s.chosen {
			title := p.Title
			if s.chinese() {
				title = p.TitleChinese
			}
			fmt.Fprintf(stdout, "%-22s %s\n", p.Name, title)
		}
		return nil
	}
	store.LogRedis(slog.New(slog.DiscardHandler)) // the log would be full of errors, because experiments kill servers
	return testenv.Run(func(testenv.T) error { return s.run(ctx, args, stdout) })
}

func (s *pitfallSettings) chinese() bool { return s.Language == "zh-CN" }

// maxParallelPitfalls bounds the pitfalls that run at the same time. Most of them wait
// for leases to end.
const maxParallelPitfalls = 4

// run runs the chosen pitfalls, prints them in their order and adds them to the report.
func (s *pitfallSettings) run(ctx context.Context, args []string, stdout io.Writer) error {
	timelines, err := report.NewTimelines(stdout, s.chinese(), hasColors(stdout))
	if err != nil {
		return err
	}
	all := make([]results.Experiment, len(s.chosen))
	done := make([]chan struct{}, len(s.chosen))
	for i := range done {
		done[i] = make(chan struct{})
	}
	var running errgroup.Group
	running.SetLimit(maxParallelPitfalls)
	go func() {
		for i, p := range s.chosen {
			running.Go(func() error {
				defer close(done[i])
				all[i] = p.Run(ctx, pitfall.Servers{pitfall.Redis: s.Redis, pitfall.MariaDB: s.DB, pitfall.ZooKeeper: s.ZooKeeper})
				return nil
			})
		}
	}()
	for i := range all {
		<-done[i]
		if ctx.Err() == nil {
			timelines.Write(all[i])
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	timelines.Summary(all)
	err = s.write(args, all)
	if err == nil && slices.ContainsFunc(all, func(e results.Experiment) bool { return !e.AsExpected() }) {
		return errUnexpected
	}
	return err
}

// write adds the experiments to the report in the folder of --out, or creates one.
func (s *pitfallSettings) write(args []string, all []results.Experiment) error {
	if s.Out == "" {
		return nil
	}
	file := filepath.Join(s.Out, "results.json")
	run, err := results.Read(file)
	if errors.Is(err, os.ErrNotExist) {
		run, err = runOf("go run ./loadtest pitfalls", args), nil
	}
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	run.Pitfalls = all
	return writeReport(s.Out, run)
}
