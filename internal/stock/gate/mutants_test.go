package gate

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/stocktest"
)

// TestMutants breaks one script in one place at a time. The promise named must
// convict each, or it proves nothing of the sound script.
func TestMutants(t *testing.T) {
	t.Parallel()
	take := func(s *scripts) *script { return &s.take }
	settle := func(s *scripts) *script { return &s.settle }
	give := func(s *scripts) *script { return &s.give }
	fill := func(s *scripts) *script { return &s.fill }
	adjust := func(s *scripts) *script { return &s.adjust }
	flight := func(s *scripts) *script { return &s.flight }
	for _, mutant := range []struct {
		name     string
		script   func(*scripts) *script
		old, new string
		convicts string
	}{
		{"one more than there is", take, "left[i] < units[l]", "left[i] + 1 < units[l]", "NoOversell"},
		{"the last unit kept back", take, "left[i] < units[l]", "left[i] <= units[l]", "LastUnit"},
		{"later takes of a call see the old count", take, "left[i] = left[i] - units[l]", "left[i] = left[i] - 1", "SameTakeTwice"},
		{"nothing checked", take, "reason = SOLD_OUT", "reason = 0", "SoldOutTakesNothing"},
		{"line 1 kept when line 2 fails", take, "if refusal == 0 then", "if refusal == 0 or at > numbers[first[t]] then", "SoldOutTakesNothing"},
		{"a missing count is an empty one", take, "reason = NOT_FILLED", "reason = SOLD_OUT", "NotFilledTakesNothing"},
		{"a missing count is plenty", take, "reply[i] == 0", "false", "EmptiedStoreFailsClosed"},
		{"no record in flight", take, "call('HSET', KEYS[2], unpack(writes))", "", "InFlightHasAllLines"},
		{"units in flight not counted", take, "flying[i] = flying[i] + units[l]", "", "TakeCutsAndRecords"},
		{"the same take cuts twice", take, "if not flight[fields[l]] then", "if true then", "SameTakeTwice"},
		{"the same take must fit twice", take, "elseif not holder and", "elseif", "SameTakeTwice"},
		{"twins both pass", take, "reason = IN_FLIGHT", "reason = 0", "TwinInFlight"},
		{"a twin is told sold out", take, "IN_FLIGHT, BURNED, LATER = 1, 2, 3, 4", "IN_FLIGHT, BURNED, LATER = 1, 2, 0, 4", "TwinInFlight"},
		{"burned takes pass", take, "reason = BURNED", "reason = 0", "GiveBeforeTake"},
		{"what a fill forgot is in flight to takes", take, " == epochs[numbers[l]] then", " then", "FillForgetsFlight"},
		{"give twice", give, "call('HDEL', KEYS[2], field)", "", "GiveOnce"},
		{"give leaves units in flight", give, "flying - units", "flying", "GiveOnce"},
		{"give returns nothing", give, "left + units", "left", "CountsAddUp"},
		{"give returns another's", give, "holder == take", "holder", "GiveOfAnothersTake"},
		{"give does not burn", give, "call('ZADD', KEYS[3], now, sku .. ' ' .. take)", "", "GiveBeforeTake"},
		{"give adds to a missing count", give, "if epoch == under then",
			"epoch, left, flying, change, fence = epoch or under, left or 0, flying or 0, change or 0, fence or 0 if true then", "LostCountInventsNothing"},
		{"give returns what a fill forgot", give, "if epoch == under then", "if epoch then", "FillForgetsFlight"},
		{"settle forgets another's", settle, " and sub(record, 1, ID) == sub(ARGV[1 + skus + a], ID + 1, 2 * ID)", "", "SettleOfAnothersTake"},
		{"settle counts an order twice", settle, "not seen[field]", "true", "SettleTwiceInOneCall"},
		{"settle keeps the record", settle, "call('HDEL', KEYS[2], unpack(settled))", "", "SettleForgets"},
		{"settle keeps the units", settle, "flying - units[i]", "flying", "SettleForgets"},
		{"settle gives the units back", settle, "= before ..", "= string.gsub(before, '(%d+) $', function(left) return left + units[i] .. ' ' end) ..", "CountsAddUp"},
		{"settle takes off what a fill forgot", settle, "epoch == epochs[i]", "epochs[i]", "FillForgetsFlight"},
		{"refill under the same epoch", fill, "tonumber(ARGV[2]) <= ", "tonumber(ARGV[2]) < ", "FillRefusesOlderEpoch"},
		{"refill under any epoch", fill, "tonumber(ARGV[2]) <= ", "false and ", "FillRefusesOlderEpoch"},
		{"refill without a new epoch", fill, "ARGV[2] .. ' '", "math.max(string.match(count, '^%d+'), 1) .. ' '", "FillRefusesOlderEpoch"},
		{"refill remembers what was in flight", fill, "ARGV[3] .. ' 0 0 '", "ARGV[3] .. ' ' .. (string.match(count, '^%d+ %S+ (%S+)') or 0) .. ' 0 '", "FillForgetsFlight"},
		{"refill keeps the number of the last change", fill, "' 0 0 '", "' 0 ' .. (string.match(count, ' (%d+) %d+$') or 0) .. ' '", "AdjustOfEarlierEpochDropped"},
		{"a change applied twice", adjust, "stored > epoch or number <= last", "stored > epoch", "AdjustOnce"},
		{"a change over a gap", adjust, "number > last + 1", "false", "AdjustGap"},
		{"a change of any earlier epoch", adjust, "stored > epoch or number <= last", "number <= last", "AdjustOfEarlierEpochDropped"},
		{"a change before its fill is dropped", adjust, "return { NOT_FILLED }", "return { APPLIED }", "AdjustWaitsForItsFill"},
		{"a change to a missing count", adjust, "stored < epoch", "false", "EmptiedStoreFailsClosed"},
		{"young takes listed as old", flight, "tonumber(taken) <= newest", "true", "InFlightByAge"},
		{"one step of the scan is all", flight, "{ step[1] }", "{ '0' }", "InFlightOfMany"},
		{"what a fill forgot is listed", flight, "epochs[sku] ~= epoch", "false", "FillForgetsFlight"},
		{"what lost its count is not listed", flight, "if epochs[sku] and", "if not epochs[sku] or", "LostCountInventsNothing"},
	} {
		t.Run(mutant.name, func(t *testing.T) {
			t.Parallel()
			client, ledger := shared.client(t, "Redis"), uuid.New()
			instances := make([]stock.Gate, 2)
			for i := range instances {
				g := script0(client, ledger)
				t.Cleanup(g.Close)
				mutated := newScripts(ledger, 0)
				s := mutant.script(mutated)
				if strings.Count(s.text, mutant.old) != 1 {
					t.Fatalf("%q stands %d times in the script", mutant.old, strings.Count(s.text, mutant.old))
				}
				*s = newScript(strings.Replace(s.text, mutant.old, mutant.new, 1))
				if err := client.ScriptLoad(t.Context(), s.text).Err(); err != nil {
					t.Fatal(err)
				}
				g.running.Store(mutated)
				instances[i] = g
			}
			err := stocktest.FindGatePromise(mutant.convicts).Convict(t.Context(), gates(client, ledger, instances...))
			if err == nil {
				t.Errorf("%s acquits it", mutant.convicts)
			} else if strings.Contains(err.Error(), "user_script") {
				t.Errorf("the mutant cannot run: %v", err)
			} else {
				t.Log(err)
			}
		})
	}
}
