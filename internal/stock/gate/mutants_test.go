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
	const same = " == take then"
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
		{"no record in flight", take, "call('HSET', KEYS[3 * i - 1], unpack(writes[i]))", "", "InFlightHasAllLines"},
		{"units in flight not counted", take, "flying[i] = flying[i] + units[l]", "", "TakeCutsAndRecords"},
		{"the same take cuts twice", take, "if not flight[i][order] then", "if true then", "SameTakeTwice"},
		{"the same take must fit twice", take, "elseif not holder and", "elseif", "SameTakeTwice"},
		{"twins both pass", take, "reason = IN_FLIGHT", "reason = 0", "TwinInFlight"},
		{"a twin is told sold out", take, "IN_FLIGHT, BURNED = 1, 2, 3, 4", "IN_FLIGHT, BURNED = 1, 2, 0, 4", "TwinInFlight"},
		{"burned takes pass", take, "reason = BURNED", "reason = 0", "GiveBeforeTake"},
		{"give twice", give, "redis.call('HDEL', flight, order)", "", "GiveOnce"},
		{"give leaves units in flight", give, "redis.call('HINCRBY', count, 'flying', '-' .. units)", "", "GiveOnce"},
		{"give returns nothing", give, "redis.call('HINCRBY', count, 'left', units)", "", "CountsAddUp"},
		{"give returns another's", give, same, " ~= '' then", "GiveOfAnothersTake"},
		{"give does not burn", give, "redis.call('ZADD', burned, now, take)", "", "GiveBeforeTake"},
		{"give adds to a missing count", give, "redis.call('HEXISTS', count, 'epoch') == 1", "redis.call('HSETNX', count, 'epoch', 1) < 2", "LostCountInventsNothing"},
		{"settle forgets another's", settle, "if seen[i][order .. sub(record, space, space + 36)] then", "if true then", "SettleOfAnothersTake"},
		{"settle counts an order twice", settle, "if not seen[i][order] then", "if true then", "SettleTwiceInOneCall"},
		{"settle keeps the record", settle, "call('HDEL', KEYS[2 * i], unpack(settled))", "", "SettleForgets"},
		{"settle keeps the units", settle, "call('HINCRBY', KEYS[2 * i - 1], 'flying', -units)", "", "SettleForgets"},
		{"settle gives the units back", settle, "call('HINCRBY', KEYS[2 * i - 1], 'flying', -units)",
			"call('HINCRBY', KEYS[2 * i - 1], 'flying', -units) call('HINCRBY', KEYS[2 * i - 1], 'left', units)", "CountsAddUp"},
		{"refill under the same epoch", fill, "tonumber(ARGV[1]) <= stored", "tonumber(ARGV[1]) < stored", "FillRefusesOlderEpoch"},
		{"refill under any epoch", fill, "tonumber(ARGV[1]) <= stored", "false", "FillRefusesOlderEpoch"},
		{"refill without a new epoch", fill, "'epoch', ARGV[1]", "'epoch', math.max(stored, 1)", "FillRefusesOlderEpoch"},
		{"refill remembers what was in flight", fill, "redis.call('DEL', KEYS[2])", "", "FillForgetsFlight"},
		{"refill keeps the number of the last change", fill, ", 'change', 0", "", "AdjustOfEarlierEpochDropped"},
		{"a change applied twice", adjust, "stored > epoch or number <= last", "stored > epoch", "AdjustOnce"},
		{"a change over a gap", adjust, "number > last + 1", "false", "AdjustGap"},
		{"a change of any earlier epoch", adjust, "stored > epoch or number <= last", "number <= last", "AdjustOfEarlierEpochDropped"},
		{"a change before its fill is dropped", adjust, "return { NOT_FILLED }", "return { APPLIED }", "AdjustWaitsForItsFill"},
		{"a change to a missing count", adjust, "stored < epoch", "false", "EmptiedStoreFailsClosed"},
		{"young takes listed as old", flight, "tonumber(taken) <= newest", "true", "InFlightByAge"},
		{"one step of the scan is all", flight, "local reply = { step[1] }", "local reply = { '0' }", "InFlightOfMany"},
	} {
		t.Run(mutant.name, func(t *testing.T) {
			t.Parallel()
			client, ledger := shared.client(t, "Redis"), uuid.New()
			instances := make([]stock.Gate, 2)
			for i := range instances {
				g := NewScript(client, ledger)
				t.Cleanup(g.Close)
				s := mutant.script(g.scripts)
				if strings.Count(s.text, mutant.old) != 1 {
					t.Fatalf("%q stands %d times in the script", mutant.old, strings.Count(s.text, mutant.old))
				}
				*s = newScript(strings.Replace(s.text, mutant.old, mutant.new, 1))
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
