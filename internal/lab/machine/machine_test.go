package machine

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func needProc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/net/tcp"); err != nil {
		t.Skip("needs /proc")
	}
}

func TestCPUTime(t *testing.T) {
	needProc(t)
	before := CPUTime([]int{os.Getpid()})
	testenv.Await(t, "this process has used CPU time", func() bool {
		for range 1000 { // uses some CPU time
			_, _ = os.Stat("/proc")
		}
		return CPUTime([]int{os.Getpid()}) >= before+5*tick
	})
	if got := CPUTime([]int{-1}); got != 0 {
		t.Errorf("%v for a process that does not exist", got)
	}
}

func TestListening(t *testing.T) {
	needProc(t)
	listener := testenv.Listen(t)
	child := exec.Command("cat")
	if _, err := child.StdinPipe(); err != nil { // cat ends when its input ends
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	got := Listening(listener.Addr().(*net.TCPAddr).Port)
	for _, want := range []int{os.Getpid(), child.Process.Pid} {
		if !slices.Contains(got, want) {
			t.Errorf("%v does not contain %d", got, want)
		}
	}
	if got := Listening(1); len(got) != 0 {
		t.Errorf("on port 1: %v", got)
	}
}

func TestResidentMiB(t *testing.T) {
	needProc(t)
	if got := ResidentMiB(os.Getpid()); got < 1 || got > 10_000 {
		t.Errorf("%v MiB", got)
	}
}
