package gate

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock/gatetest"
)

// TestBrokenScripts breaks one script in one place at a time. The check of the named promise must
// fail. A check that passes with a broken script proves nothing about the real one.
func TestBrokenScripts(t *testing.T) {
	t.Parallel()
	take := func(s *scripts) *script { return &s.take }
	settle := func(s *scripts) *script { return &s.settle }
	give := func(s *scripts) *script { return &s.give }
	fill := func(s *scripts) *script { return &s.fill }
	adjust := func(s *scripts) *script { return &s.adjust }
	inFlight := func(s *scripts) *script { return &s.inFlight }
	for _, mutant := range []struct {
		name     string
		script   func(*scripts) *script
		old, new string
		promise  string
	}{
		{"one more than there is", take, "available[i] < units[l]", "available[i] + 1 < units[l]", "NoOversell"},
		{"the last unit is kept back", take, "available[i] < units[l]", "available[i] <= units[l]", "LastUnit"},
		{"later takes of a call see the old count", take, "available[i] = available[i] - units[l]", "available[i] = available[i] - 1", "SameTakeTwice"},
		{"nothing is checked", take, "reason = SOLD_OUT", "reason = 0", "SoldOutTakesNothing"},
		{"line 1 is cut although line 2 is refused", take, "if refusal == 0 then", "if refusal == 0 or at > numbers[first[t]] then", "SoldOutTakesNothing"},
		{"a missing count is sold out", take, "reason = NOT_FILLED", "reason = SOLD_OUT", "NotFilledTakesNothing"},
		{"a missing count has any number of units", take, "reply[i] == 0", "false", "EmptiedStoreFailsClosed"},
		{"no record in flight", take, "call('HSET', KEYS[2], unpack(writes))", "", "InFlightHasAllLines"},
		{"units in flight are not counted", take, "in_flight[i] = in_flight[i] + units[l]", "", "TakeCutsAndRecords"},
		{"the same take cuts twice", take, "if not holders[fields[l]] then", "if true then", "SameTakeTwice"},
		{"the same take must fit twice", take, "elseif not holder and", "elseif", "SameTakeTwice"},
		{"two takes of an order are cut", take, "reason = IN_FLIGHT", "reason = 0", "TwinInFlight"},
		{"another take of the order is refused as sold out", take, "IN_FLIGHT, BURNED, LATER_GENERATION = 1, 2, 3, 4", "IN_FLIGHT, BURNED, LATER_GENERATION = 1, 2, 0, 4", "TwinInFlight"},
		{"a burned take is cut", take, "reason = BURNED", "reason = 0", "GiveBeforeTake"},
		{"a void record refuses a take", take, " == epochs[numbers[l]] then", " then", "FillForgetsFlight"},
		{"units are given back twice", give, "call('HDEL', KEYS[2], field)", "", "GiveOnce"},
		{"give leaves units in flight", give, "in_flight - units", "in_flight", "GiveOnce"},
		{"give returns nothing", give, "available + units", "available", "CountsAddUp"},
		{"give returns another take's units", give, "holder == take", "holder", "GiveOfAnothersTake"},
		{"give does not burn", give, "call('ZADD', KEYS[3], now, sku .. ' ' .. take)", "", "GiveBeforeTake"},
		{"give adds to a missing count", give, "if epoch == taken_under then",
			"epoch, available, in_flight, change, fence = epoch or taken_under, available or 0, in_flight or 0, change or 0, fence or 0 if true then", "LostCountInventsNothing"},
		{"give returns the units of a void record", give, "if epoch == taken_under then", "if epoch then", "FillForgetsFlight"},
		{"settle removes another take's record", settle, " and sub(record, 1, ID) == sub(ARGV[1 + skus + a], ID + 1, 2 * ID)", "", "SettleOfAnothersTake"},
		{"settle counts an order twice", settle, "not seen[field]", "true", "SettleTwiceInOneCall"},
		{"settle keeps the record", settle, "call('HDEL', KEYS[2], unpack(settled))", "", "SettleForgets"},
		{"settle keeps the units", settle, "in_flight - units[i]", "in_flight", "SettleForgets"},
		{"settle gives the units back", settle, "= before ..", "= string.gsub(before, '(%d+) $', function(left) return left + units[i] .. ' ' end) ..", "CountsAddUp"},
		{"settle subtracts the units of a void record", settle, "epoch == epochs[i]", "epochs[i]", "FillForgetsFlight"},
		{"refill under the same epoch", fill, "tonumber(epoch) > ", "tonumber(epoch) >= ", "FillRefusesOlderEpoch"},
		{"refill under any epoch", fill, "tonumber(epoch) > ", "true or ", "FillRefusesOlderEpoch"},
		{"refill without a new epoch", fill, "epoch .. ' '", "math.max(match(counts[i] or '', '^%d+') or 1, 1) .. ' '", "FillRefusesOlderEpoch"},
		{"refill keeps the units in flight", fill, "units .. ' 0 0 '", "units .. ' ' .. (match(counts[i] or '', '^%d+ %S+ (%S+)') or 0) .. ' 0 '", "FillForgetsFlight"},
		{"refill keeps the number of the last change", fill, "' 0 0 '", "' 0 ' .. (match(counts[i] or '', ' (%d+) %d+$') or 0) .. ' '", "AdjustOfEarlierEpochDropped"},
		{"a change is applied twice", adjust, "stored > epoch or number <= last", "stored > epoch", "AdjustOnce"},
		{"a change is applied over a gap", adjust, "number > last + 1", "false", "AdjustGap"},
		{"a change of an earlier epoch is applied", adjust, "stored > epoch or number <= last", "number <= last", "AdjustOfEarlierEpochDropped"},
		{"a change before its fill is dropped", adjust, "return { NOT_FILLED }", "return { APPLIED }", "AdjustWaitsForItsFill"},
		{"a change is applied to a missing count", adjust, "stored < epoch", "false", "EmptiedStoreFailsClosed"},
		{"young takes are listed as old", inFlight, "tonumber(taken_at) <= newest", "true", "InFlightByAge"},
		{"only one step of the scan is made", inFlight, "{ step[1] }", "{ '0' }", "InFlightOfMany"},
		{"only one step of the scan over all SKUs is made", inFlight, "{ step[1] }", "{ '0' }", "ScanFindsAll"},
		{"only the first count is filled", fill, "for i, sku in ipairs(names) do", "for i, sku in ipairs({ names[1] }) do", "FillAllFillsEach"},
		{"one stale fill stops the others", fill, "if #new > 0 then", "if 4 * #new > 2 * #ARGV - 8 then", "FillAllFillsEach"},
		{"a void record is listed", inFlight, "epochs[sku] ~= epoch", "false", "FillForgetsFlight"},
		{"a take whose count is lost is not listed", inFlight, "earlier or epochs[sku] and", "earlier or not epochs[sku] or", "LostCountInventsNothing"},
	} {
		t.Run(mutant.name, func(t *testing.T) {
			t.Parallel()
			client, ledger := shared.client(t, "Redis"), uuid.New()
			instances := make([]gatetest.Gate, 2)
			for i := range instances {
				g := script0(client, ledger)
				t.Cleanup(g.Close)
				mutated := newScripts(ledger, 0)
				s := mutant.script(mutated)
				if strings.Count(s.text, mutant.old) != 1 {
					t.Fatalf("%q occurs %d times in the script", mutant.old, strings.Count(s.text, mutant.old))
				}
				*s = newScript(strings.Replace(s.text, mutant.old, mutant.new, 1))
				if err := client.ScriptLoad(t.Context(), s.text).Err(); err != nil {
					t.Fatal(err)
				}
				g.scripts.Store(mutated)
				instances[i] = g
			}
			err := gatetest.Find(mutant.promise).Check(t.Context(), gates(client, ledger, instances...))
			if err == nil {
				t.Errorf("%s does not detect it", mutant.promise)
			} else if strings.Contains(err.Error(), "user_script") {
				t.Errorf("the mutant cannot run: %v", err)
			} else {
				t.Log(err)
			}
		})
	}
}
