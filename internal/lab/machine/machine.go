// Package machine describes the machine that a measurement ran on, with the
// processes on it. Figures about processes come from /proc, and are 0 or empty where
// there is none.
package machine

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// tick is the unit of CPU time in /proc on every Linux that Go supports.
const tick = 10 * time.Millisecond

// CPUTime returns the user and system time of the processes so far. It includes the
// children that they have waited for, and skips processes that have ended.
func CPUTime(pids []int) (total time.Duration) {
	for _, pid := range pids {
		proc, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		if stat, err := proc.Stat(); err == nil {
			total += time.Duration(int(stat.UTime)+int(stat.STime)+stat.CUTime+stat.CSTime) * tick
		}
	}
	return total
}

// Listening returns the processes that listen on the TCP port, with all their
// descendants. It skips the processes whose files the caller may not read.
func Listening(port int) []int {
	sockets := listeningSockets(port)
	if len(sockets) == 0 {
		return nil
	}
	processes, _ := procfs.AllProcs()
	var pids []int
	for _, process := range processes {
		files, _ := process.FileDescriptorTargets()
		if slices.ContainsFunc(files, func(file string) bool { return sockets[file] }) {
			pids = append(pids, process.PID)
		}
	}
	return testenv.WithDescendants(pids...)
}

// listeningSockets returns the sockets that listen on the TCP port, by the names that
// they have among the files of a process.
func listeningSockets(port int) map[string]bool {
	sockets := make(map[string]bool)
	local := fmt.Sprintf(":%04X", port)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, local) { // cheap test that excludes most lines: there may be thousands
				continue
			}
			fields := strings.Fields(line) // sl, local address, remote address, state, five more, inode
			const listen = "0A"
			if len(fields) > 9 && fields[3] == listen && strings.HasSuffix(fields[1], local) {
				sockets["socket:["+fields[9]+"]"] = true
			}
		}
	}
	return sockets
}

// Name returns the name of the process, at most 15 letters of its program. It is empty if
// there is no such process.
func Name(pid int) string {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return ""
	}
	name, _ := proc.Comm()
	return name
}

// ResidentMiB returns the memory of the process that is in RAM.
func ResidentMiB(pid int) float64 {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	status, err := proc.NewStatus()
	if err != nil {
		return 0
	}
	return float64(status.VmRSS) / (1 << 20)
}

// Describe names the processor, the number of cores, the system and Go's version.
func Describe() string {
	model := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	system := runtime.GOOS
	if kernel := output("uname", "-sr"); kernel != "" {
		system = kernel
	}
	return fmt.Sprintf("%s, %d cores, %s, %s", model, runtime.NumCPU(), system, runtime.Version())
}

// Commit returns the abbreviated commit of the working tree, followed by "with
// changes" if tracked files differ from it. It returns "unknown" outside a
// repository.
func Commit() string {
	head := output("git", "rev-parse", "--short=12", "HEAD")
	if head == "" || strings.Contains(head, " ") {
		return "unknown"
	}
	if output("git", "status", "--porcelain", "--untracked-files=no") != "" {
		head += " with changes"
	}
	return head
}

// Version returns the first three words that a program prints, as a rule its name and
// version. It returns an empty string if the program is not installed.
func Version(program string, args ...string) string {
	line, _, _ := strings.Cut(output(program, args...), "\n")
	words := strings.Fields(line)
	return strings.Join(words[:min(3, len(words))], " ")
}

// output returns what a program prints. It ignores the exit code: some programs print
// their version and fail.
func output(program string, args ...string) string {
	out, _ := exec.Command(program, args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}
