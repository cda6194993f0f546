package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpuTime is what the processes have used so far, children they have waited for
// included.
func cpuTime(pids []int) (total time.Duration) {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // gone: the process that waited for it has its time
		}
		total += parseStat(stat)
	}
	return total
}

// parseStat adds up user and system time of the process and of its children.
func parseStat(stat []byte) time.Duration {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var ticks int64
	for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime; the state is field 0 here
		if i < len(fields) {
			n, _ := strconv.ParseInt(string(fields[i]), 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * tick
}

// residentMiB is the memory that the process has in RAM.
func residentMiB(pid int) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			return kib / 1024
		}
	}
	return 0
}

// machine says what this was measured on.
func machine() string {
	model := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d cores, Linux %s, %s; %s; %s; %s; %s", model, runtime.NumCPU(), output("uname", "-r"), runtime.Version(),
		short(output("redis-server", "--version")), short(output("mariadbd", "--version")), short(postgresVersion()), short(output("wrk", "-v")))
}

func postgresVersion() string {
	if v := output("postgres", "--version"); v != "" {
		return v
	}
	return output("psql", "--version")
}

// commit is what the tree is at.
func commit() string {
	head := output("git", "rev-parse", "--short=12", "HEAD")
	if head == "" {
		return "unknown"
	}
	if output("git", "status", "--porcelain", "--untracked-files=no") != "" {
		head += " with changes"
	}
	return head
}

func output(name string, args ...string) string {
	out, _ := exec.Command(name, args...).CombinedOutput() // wrk -v fails as it prints
	return strings.TrimSpace(string(out))
}

// short keeps the name and the version of what a program says of itself.
func short(version string) string {
	line, _, _ := strings.Cut(version, "\n")
	words := strings.Fields(line)
	return strings.Join(words[:min(3, len(words))], " ")
}
