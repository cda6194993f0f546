package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// versions measures each strategy of this service and of the service at another commit,
// one right after the other, each first in turns. The other has servers of its own, since
// its schema may be another.
func (l *lab) versions(ctx context.Context) error {
	program, err := buildAt(ctx, testenv.Folder(l.t, "versions"), l.against)
	if err != nil {
		return err
	}
	other, err := newLab(ctx, l.t, l.settings, l.database, program, l.report, l.progress)
	if err != nil {
		return err
	}
	defer other.close()
	chosen, samples := l.chosen(true), make(map[*lab]map[string][]sample)
	samples[l], samples[other] = make(map[string][]sample), make(map[string][]sample)
	pair := []*lab{other, l}
	titles := map[*lab]string{l: "now", other: l.against}
	for round, v := range measure.Interleaved(l.Rounds, chosen) {
		pair[0], pair[1] = pair[1], pair[0]
		for _, version := range pair {
			s, err := version.sample(ctx, v, situation{skus: 1})
			if err != nil {
				return fmt.Errorf("%s, %s: %w", v.name, titles[version], err)
			}
			l.tell(round, v.name+", "+titles[version], s)
			samples[version][v.name] = append(samples[version][v.name], s)
		}
	}
	rows := table.New("", "orders/s: "+l.against, "now", "ratio", "µs of CPU per order: "+l.against, "now", "p99 ms: "+l.against, "now")
	for _, v := range chosen {
		before, after := samples[other][v.name], samples[l][v.name]
		x, y := median(before), median(after)
		if x.fault+y.fault != "" {
			rows.Add(v.name, "failed: "+x.fault+y.fault)
			continue
		}
		ratio, _ := compared(after, before, rate)
		rows.Add(v.name, whole(x.perSecond), whole(y.perSecond), fmt.Sprintf("%.2f", ratio), whole(x.cpu()), whole(y.cpu()), millis(x.p99), millis(y.p99))
	}
	rows.WriteMarkdown(l.report)
	return nil
}

// buildAt builds the service as it is at a commit of this repository, in the folder, and
// returns the file.
func buildAt(ctx context.Context, folder, commit string) (file string, err error) {
	source := filepath.Join(folder, "source")
	file = filepath.Join(folder, "api")
	for _, args := range [][]string{
		{"git", "clone", "--quiet", "--no-checkout", "--shared", ".", source},
		{"git", "-C", source, "checkout", "--quiet", "--detach", commit, "--"},
		{"go", "build", "-C", source, "-o", file, "./cmd/api"},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("building the service at %s: %w: %s", commit, err, out)
		}
	}
	return file, nil
}
