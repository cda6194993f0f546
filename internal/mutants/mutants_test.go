// Package mutants breaks the sound code in one place at a time and expects the
// suite to notice. What no test convicts, no test protects.
package mutants

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// mutant is one change to a file, and the test that must convict it. (The
// gate's scripts have more of them, in internal/stock/gate.)
type mutant struct {
	name     string
	file     string // from the module's root
	old, new string
	test     string // its package, and the path of the test
}

const (
	service     = "internal/order/service.go"
	ledger      = "internal/order/ledger.go"
	stockrow    = "internal/order/stockrow.go"
	recovery    = "internal/order/recovery.go"
	transaction = "internal/store/tx.go"
	mysql       = "internal/store/mysql.go"
	refill      = "internal/order/refill.go"
	rows        = "internal/stock/cutter/rows.go"
	merged      = "internal/stock/cutter/merged.go"
	conditional = "internal/stock/cutter/conditional.go"
	optimistic  = "internal/stock/cutter/optimistic.go"
	takeLua     = "internal/stock/gate/take.lua"
	giveLua     = "internal/stock/gate/give.lua"
	adjustLua   = "internal/stock/gate/adjust.lua"
	readLua     = "internal/stock/gate/read.lua"
	writeLua    = "internal/stock/gate/write.lua"
	segmented   = "internal/stock/gate/segmented.go"
	backend     = "internal/lock/backend.go"
	acquireLua  = "internal/lock/redis/acquire.lua"
	releaseLua  = "internal/lock/redis/release.lua"
)

var mutants = []mutant{
	{"one more than there is, at the gate", takeLua, "left[i] < units[l]", "left[i] + 1 < units[l]", "internal/order TestRush/SQLite/lua"},
	{"one more than there is, in one UPDATE", merged, "sql += \" AND available >= ?\"", "sql += \" AND available + 1 >= ?\"", "internal/stock/cutter TestConformance/SQLite/merged/LastUnits"},
	{"one more than there is, under a row lock", rows, "available < line.Quantity", "available+1 < line.Quantity", "internal/stock/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"the last unit kept back", rows, "available < line.Quantity", "available <= line.Quantity", "internal/stock/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"no record in flight", takeLua, "call('HSET', KEYS[2], unpack(writes))", "", "internal/order TestRecovery/SQLite"},
	{"give twice", giveLua, "call('HDEL', KEYS[2], field)", "", "internal/stock/gate TestConformance/Script/Redis/GiveOnce"},
	{"answer before commit", service, "err := s.ledger.Record(ctx, e, d)",
		"var err error\n\tgo func() { _ = s.ledger.Record(context.WithoutCancel(ctx), e, d) }()", "internal/order TestNoAnswerBeforeCommit/SQLite"},
	{"refill without a new epoch", stockrow, "row.Epoch = max(row.Epoch, above) + 1", "row.Epoch = max(row.Epoch, above)", "internal/order TestTakeOutlivesRefill/SQLite"},
	{"refill below the gate's epoch", stockrow, "row.Epoch = max(row.Epoch, above) + 1", "row.Epoch++", "internal/order TestRestoredLedger/SQLite"},
	{"epoch not demanded", rows, "line.Epoch != 0 && r.epoch != line.Epoch", "false", "internal/stock/cutter TestConformance/SQLite/for-update/StaleEpochAlone"},
	{"epoch not demanded in one UPDATE", merged, "if line.Epoch != 0 {\n\t\tsql +=", "if false {\n\t\tsql +=", "internal/order TestTakeOutlivesRefill/SQLite"},
	{"one more than there is, in one UPDATE of several SKUs", merged, "text.WriteString(\" AND available >= ?\")", "text.WriteString(\" AND available + 1 >= ?\")", "internal/stock/cutter TestConformance/SQLite/merged/AllLinesOrNone"},
	{"epoch not demanded in one UPDATE of several SKUs", merged, "if of.epoch != 0 {\n\t\t\ttext", "if false {\n\t\t\ttext", "internal/stock/cutter TestConformance/SQLite/merged/EpochOfEveryLine"},
	{"some of a planned cut is enough", transaction, "affected[0] != rows", "affected[0] == 0", "internal/order TestPlannedGroup/SQLite"},
	{"some of a planned cut is enough, in one round trip", mysql, "ROW_COUNT() = %d", "ROW_COUNT() <= %d", "internal/order TestPlannedGroup/MariaDB"},
	{"a lost answer to a whole transaction means no", transaction, "t.end(err)\n\treturn false, fmt.Errorf(\"%w: %w\", ErrUnknownOutcome, err)", "t.end(err)\n\treturn false, err", "internal/order TestCommitInLimbo/MariaDB/lua"},
	{"layout not demanded", rows, "r.layout != layout", "false", "internal/stock/cutter TestConformance/SQLite/for-update/OtherLayout"},
	{"unknown commit resolved by reading", ledger,
		"(recorded bool, err error) {",
		"(recorded bool, err error) {\n\tif found, err := entries(l.db.WithContext(ctx), []uuid.UUID{d.OrderID}); err == nil {\n\t\te := found[d.OrderID]\n\t\treturn e != nil && e.Status != Void && e.takeID == d.TakeID, nil\n\t}",
		"internal/order TestCommitInLimbo/PostgreSQL/lua"},
	{"recovery settles a void", ledger, "return e.Status != Void && e.takeID == d.TakeID, nil", "return e.takeID == d.TakeID, nil", "internal/order TestRecovery/SQLite"},
	{"recovery settles another take's order", ledger, "return e.Status != Void && e.takeID == d.TakeID, nil", "return e.Status != Void, nil", "internal/order TestRecovery/SQLite"},
	{"recovery does not wait for the deadline", recovery, "s.gate.InFlight(ctx, s.takeDeadline,", "s.gate.InFlight(ctx, 0,", "internal/order TestYoungTakesAreLeft"},
	{"line 1 kept when line 2 fails", conditional, "giveBack(tx, d.Lines[:n])", "giveBack(tx, d.Lines[:min(n, 0)])", "internal/stock/cutter TestConformance/SQLite/conditional/AllLinesOrNone"},
	{"line 1 kept when line 2 fails, at the gate", takeLua, "if refusal == 0 then", "if refusal == 0 or at > numbers[first[t]] then", "internal/order TestPlace/SQLite/lua_unguarded"},
	{"a taken primary key answered as sold out", ledger, "r.answer = &existing{e}", "_, r.answer = e, stock.Refuse(r.deduction.Lines[0].SKU, stock.ErrSoldOut)", "internal/order TestSlowTwin/SQLite"},
	{"a refused key is not looked up", service, `if r.Key != "" {
		e, err := s.findKeyed`, `if false {
		e, err := s.findKeyed`, "internal/order TestKeys/SQLite"},
	{"a key keeps its void order", service, "generation++ // a void", "// a void", "internal/order TestSlowTwin/SQLite"},
	{"a lost take is left alone", service, "s.give(ctx, d)\n\t\t\t\treturn Order{}, fmt.Errorf(\"%w: taking", "return Order{}, fmt.Errorf(\"%w: taking", "internal/order TestLostTakeAnswer/SQLite"},
	{"compensation on the request's context", service, "context.WithTimeout(context.WithoutCancel(ctx), compensationTimeout)", "context.WithTimeout(ctx, compensationTimeout)", "internal/order TestCompensationOutlivesTheRequest/SQLite"},
	{"a refused order's units stay at the gate", service, "s.give(ctx, d)\n\tif s.gate != nil && errors.Is", "if s.gate != nil && errors.Is", "internal/order TestNoAnswerBeforeCommit/SQLite"},
	{"a guard refusal proves nothing", service, "s.disbelieve(ctx, d, skuOf(err))", "", "internal/order TestGuardRefusal/SQLite"},
	{"drift is left alone", recovery, "if before[sku] != now {", "if before[sku] != now || true {", "internal/order TestDrift/SQLite"},
	{"a gap between changes is nothing", refill, "case errors.Is(err, stock.ErrChangeGap):", "case false:", "internal/order TestAdditionOnce/SQLite"},
	{"one bad order fails its group", ledger, "case store.IsStatementError(err):\n\t\t\trs = l.divide(rs, err)", "case store.IsStatementError(err):\n\t\t\tfail(rs, fmt.Errorf(\"%w: %w\", stock.ErrBusy, err))\n\t\t\treturn", "internal/order TestPoisonedGroup/MariaDB/merged"},
	{"a read under an older token", readLua, "token < tonumber(fence)", "false", "internal/stock/gate TestOutlivedLock/redis/before/fence_true"},
	{"a read raises no fence", readLua, "change .. ' ' .. ARGV[4]", "change .. ' ' .. fence", "internal/stock/gate TestOutlivedLock/redis/between/fence_true"},
	{"a write does not look at the fence", writeLua, "ARGV[a + 1] ~= '0' and", "false and", "internal/stock/gate TestOutlivedLock/redis/between/fence_true"},
	{"give does not look at the fence", giveLua, "token > 0 and token <", "false and token <", "internal/stock/gate TestFencesAreKept"},
	{"an addition does not look at the fence", adjustLua, "token < tonumber(fence)", "false", "internal/stock/gate TestFencesAreKept"},
	{"what lies in several segments is sold out", segmented, "if sum >= line.Quantity {", "if sum < 0 {", "internal/stock/gate TestGather/Redis"},
	{"sold out while somebody gathers", segmented, "before%2 == 0 && before == after", "before <= after", "internal/stock/gate TestSoldOutWaitsForAGather"},
	{"the remainder is nobody's", segmented, "if int64((n-first+count)%count) < units%int64(count) {", "if false {", "internal/stock/gate TestFillAndAdjustSpreadEvenly"},
	{"an inner Unlock frees the lock", backend, "last, lost := len(h.leases) == 0, h.lost", "last, lost := true, h.lost", "internal/lock/locktest TestConformance/local/Reentrant"},
	{"a lock passed on keeps its token", acquireLua, "if last >= token then\n  token = last + 1", "if last > 0 then\n  token = last", "internal/lock/locktest TestConformance/redis/ProcessesExclude"},
	{"a held lock is granted", acquireLua, "if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then", "if false then", "internal/lock/locktest TestConformance/redis/OneHolder"},
	{"anybody's lock is released", releaseLua, "call('HDEL', KEYS[1], ARGV[1]) == 0", "call('DEL', KEYS[1]) == 0", "internal/lock/locktest TestConformance/redis/StoppedHolder"},
	{"a release is not announced", releaseLua, "local heard = call('PUBLISH', KEYS[2], '0')", "local heard = 0", "internal/lock/redis TestOurHolderExcludesRedisson"},
	{"a moved version is cut all the same", optimistic, "return nil, stock.ErrConflict", "continue", "internal/stock/cutter TestConformance/MariaDB/optimistic/CutsAddUp"},
}

// TestMutants runs the convicting test on each mutant.
func TestMutants(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			out, err := m.run(t, root)
			pkg, path, _ := strings.Cut(m.test, " ")
			name, _, _ := strings.Cut(path, "/")
			switch {
			case err == nil:
				t.Errorf("%s acquits it:\n%s", path, out)
			case !strings.Contains(out, "--- FAIL: "+name):
				t.Errorf("%s in %s did not fail by its own verdict:\n%s", path, pkg, out)
			}
		})
	}
}

// run runs the test on the mutated module: the files on disk stay as they are.
func (m mutant) run(t *testing.T, root string) (output string, err error) {
	t.Helper()
	sound, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(sound), m.old); n != 1 {
		t.Fatalf("%q stands %d times in %s", m.old, n, m.file)
	}
	folder := t.TempDir()
	mutated := filepath.Join(folder, filepath.Base(m.file))
	overlay := filepath.Join(folder, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.file): mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{mutated: []byte(strings.Replace(string(sound), m.old, m.new, 1)), overlay: replace} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	pkg, path, _ := strings.Cut(m.test, " ")
	levels := strings.Split(path, "/")
	for i, level := range levels {
		levels[i] = "^" + regexp.QuoteMeta(level) + "$"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-timeout=2m", "-overlay="+overlay,
		"-run="+strings.Join(levels, "/"), "./"+pkg)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	return string(text), err
}
