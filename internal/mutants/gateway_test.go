//go:build mutants

package mutants

const (
	gatewayLua  = "deploy/gateway/gateway.lua"
	gatewayConf = "deploy/gateway/nginx.conf"
)

// gateway lists mutants of deploy/gateway and of the load tests that use it.
var gateway = []mutant{
	{"gateway: every order asks a Redis that has failed", gatewayLua, `levels:set(" redis failed", true, REDIS_PAUSE)`, "", "deploy/gateway TestRedisPause"},
	{"gateway: a request without Host", gatewayConf, `"" gateway;`, `"" "";`, "deploy/gateway TestGateway/without Host"},
	{"gateway: the plain text of an instance", gatewayLua, "ngx.ctx.body = head(malformed)", "", "deploy/gateway TestGateway/invalid HTTP"},
	{"gateway: a keyed refusal by a cached count", gatewayLua, "if refusal or levels:add", "if levels:add", "deploy/gateway TestGateway/a key"},
	{"gateway: a keyed refusal after units were added", gatewayLua, "refusal == seen", "refusal", "deploy/gateway TestGateway/a key"},
	{"gateway: a count of an earlier generation", gatewayLua, "floor(epoch / EPOCHS) ~= generation", "floor(epoch / EPOCHS) > generation", "deploy/gateway TestGateway/generations"},
	{"gateway: audits are public", gatewayConf, `"~^/stock/(?:[^/?#%]|%3[Aa])+`, `"~^/stock/(?:[^?#%]|%3[Aa])+`, "deploy/gateway TestGateway/private routes"},
	{"gateway: payments are public", gatewayConf, `+/cancel(?:`, `+/(?:cancel|pay)(?:`, "deploy/gateway TestGateway/private routes"},
	{"gateway: an escaped slash is public", gatewayConf, `"~^/stock/(?:[^/?#%]|%3[Aa])+`, `"~^/stock/(?:[^/?#])+`, "deploy/gateway TestGateway/private routes"},
	{"gateway: metrics are public behind another proxy", gatewayConf, "            if ($holdfast_forwarded) { return 404; }\n", "", "deploy/gateway TestGateway/metrics"},
	{"gateway: an order for the last units is refused", gatewayLua, "line.most < line.quantity", "line.most <= line.quantity", "deploy/gateway TestGateway/the last units"},
	{"gateway: units in flight do not count", gatewayLua, "one.in_flight ~= 0", "false", "deploy/gateway TestGateway/in flight"},
	{"gateway: units in flight of segments do not count", gatewayLua, "all.in_flight + in_flight", "0", "deploy/gateway TestGateway/a segment in flight"},
	{"gateway: keys are ignored", gatewayLua, "elseif not key then", "else", "deploy/gateway TestGateway/a key"},
	{"gateway: the refusal of another body counts", gatewayLua, `key .. "\0" .. body`, "key", "deploy/gateway TestGateway/a key"},
	{"gateway: an addition is not seen in the mark", gatewayLua, `change .. "@"`, `"@"`, "deploy/gateway TestGateway/a key"},
	{"gateway: a restart of Redis is not seen in the mark", gatewayLua, ` .. "@" .. runs[n]`, "", "deploy/gateway TestRedisRestarted"},
	{"gateway: any 409 is a refusal", gatewayLua, `find(ngx.arg[1], '"type":"/problems/sold-out"', 1, true)`, "true", "deploy/gateway TestGateway/a key in progress"},
	{"gateway: the refusal of a broken strategy counts", gatewayLua, "strategy.sound == true", "true", "deploy/gateway TestGateway/a key under a broken strategy"},
	{"gateway: a charset without quotes is unusual", gatewayLua, `charset == "utf-8" or `, "", "deploy/gateway TestGateway/content types"},
	{"gateway: the case of a media type counts", gatewayLua, "lower(content_type)", "content_type", "deploy/gateway TestGateway/content types"},
	{"gateway: any charset is UTF-8", gatewayLua, `rest == "" or charset == "utf-8"`, "rest", "deploy/gateway TestGateway/content types"},
	{"gateway: a beat that does not change counts", gatewayLua, "now() - since < BEAT_TIMEOUT", "true", "deploy/gateway TestGateway/generations"},
	{"gateway: another ledger is not warned of", gatewayLua, "elseif reason then", "elseif false then", "deploy/gateway TestGateway/another ledger's ID"},
	{"gateway: nothing is counted", gatewayLua, `count("orders", result, reason)`, "", "deploy/gateway TestGateway/metrics"},
	{"gateway: every path is public", gatewayConf, `"~ $" 404;`, `"~ $" "";`, "deploy/gateway TestGateway/private routes"},
	{"gateway: every method is public", gatewayConf, "default 405;", `default "";`, "deploy/gateway TestGateway/private routes"},
	{"gateway: instances are not told the address of the client", gatewayConf, "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;", "", "deploy/gateway TestGateway/forwarded"},
	{"gateway: nginx's own page for malformed requests", gatewayConf, "error_page 400 ", "error_page ", "deploy/gateway TestGateway/invalid HTTP"},
	{"gateway: nginx's own error pages", gatewayConf, "error_page 400 403 404 405", "error_page 400", "deploy/gateway TestGateway/private routes"},
	{"gateway: one segment counts", gatewayLua, "all.available = all.available + available", "all.available = tonumber(available)", "deploy/gateway TestGateway/segments"},
	{"gateway: segments may have different epochs", gatewayLua, "epoch ~= (all.epoch or epoch)", "false", "deploy/gateway TestGateway/segments refilled"},
	{"gateway: a strategy without a gate has counts", gatewayLua, `type(strategy.gate) == "string" and`, "", "deploy/gateway TestGateway/no gate"},
	{"gateway: lines are checked in the client's order", gatewayLua, "table.sort(lines, before)", "", "deploy/gateway TestGateway/several lines"},
	{"gateway: segments are checked in the order of SKUs", gatewayLua, "all.segmented = segments > 0", "", "deploy/gateway TestGateway/several lines in segments"},
	{"gateway: a SKU without a count is sold out", gatewayLua, `return "passed", "no-count" -- an`, `one = { available = 0, in_flight = 0, mark = "0" } -- an`, "deploy/gateway TestGateway/several lines"},
	{"gateway: sold out for an hour", gatewayLua, "milliseconds / 1000", "3600", "deploy/gateway TestGateway/restocked"},
	{"gateway: the pause after a failure of Redis is not kept", gatewayLua, `levels:get(" redis failed")`, "false", "deploy/gateway TestRedisPause"},
	{"vegeta: targets always have keys", "loadtest/vegeta/main.go", "if keys {", "if true {", "loadtest/vegeta TestWriteWithoutKeys"},
}
