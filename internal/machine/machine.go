// Package machine tells what a measurement was taken on, and what it cost there.
package machine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// CPUTime is what the processes have used so far, children they have waited for
// included. It is 0 where there is no /proc.
func CPUTime(pids []int) (total time.Duration) {
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

// Listening are the processes that listen on the TCP port of this machine, with
// all that they have started. There are none where /proc does not tell, or tells
// only its owner.
func Listening(port int) (pids []int) {
	sockets := make(map[string]bool)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line) // sl, local address, remote address, state, …, inode
			if len(fields) > 9 && fields[3] == "0A" && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+fields[9]+"]"] = true
			}
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && sockets[target] {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			if !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return withChildren(pids)
}

// withChildren adds what the processes have started.
func withChildren(pids []int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for grown := true; grown; {
		grown = false
		for _, file := range stats {
			stat, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			if len(fields) < 2 || slices.Contains(pids, pid) {
				continue
			}
			if parent, _ := strconv.Atoi(string(fields[1])); slices.Contains(pids, parent) {
				pids, grown = append(pids, pid), true
			}
		}
	}
	return pids
}

// ResidentMiB is the memory that the process has in RAM, 0 where there is no
// /proc.
func ResidentMiB(pid int) float64 {
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

// Describe names the processor, its cores, the system and Go.
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
	if kernel := Output("uname", "-sr"); kernel != "" {
		system = kernel
	}
	return fmt.Sprintf("%s, %d cores, %s, %s", model, runtime.NumCPU(), system, runtime.Version())
}

// Commit is what the tree is at, as far as git knows.
func Commit() string {
	head := Output("git", "rev-parse", "--short=12", "HEAD")
	if head == "" || strings.Contains(head, " ") {
		return "unknown"
	}
	if Output("git", "status", "--porcelain", "--untracked-files=no") != "" {
		head += " with changes"
	}
	return head
}

// Version is name and version of what an installed program says of itself, or
// empty.
func Version(program string, args ...string) string {
	line, _, _ := strings.Cut(Output(program, args...), "\n")
	words := strings.Fields(line)
	return strings.Join(words[:min(3, len(words))], " ")
}

// Output is what a program prints; nothing, if it is not there. (Some print
// their version and fail.)
func Output(program string, args ...string) string {
	out, _ := exec.Command(program, args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}
