//go:build mutants

package mutants

// gateway lists mutants of deploy/gateway and of the load tests that use it. The
// tests of deploy/gateway have more.
var gateway = []mutant{
	{"gateway: every order asks a Redis that has failed", "deploy/gateway/gateway.lua",
		`levels:set(" redis failed", true, REDIS_PAUSE)`, "",
		"deploy/gateway TestRedisPause"},
	{"gateway: a request without Host", "deploy/gateway/nginx.conf",
		`"" gateway;`, `"" "";`,
		"deploy/gateway TestGateway/without Host"},
	{"gateway: the plain text of an instance", "deploy/gateway/gateway.lua",
		"ngx.ctx.body = head(malformed)", "",
		"deploy/gateway TestGateway/invalid HTTP"},
	{"gateway: a keyed refusal by a cached count", "deploy/gateway/gateway.lua",
		"if refusal or levels:add", "if levels:add",
		"deploy/gateway TestGateway/a key"},
	{"gateway: a keyed refusal after units were added", "deploy/gateway/gateway.lua",
		"refusal == seen", "refusal",
		"deploy/gateway TestGateway/a key"},
	{"gateway: a count of an earlier generation", "deploy/gateway/gateway.lua",
		"floor(epoch / EPOCHS) ~= generation", "floor(epoch / EPOCHS) > generation",
		"deploy/gateway TestGateway/generations"},
	{"gateway: audits are public", "deploy/gateway/nginx.conf",
		`"~^/stock/(?:[^/?#%]|%3[Aa])+`, `"~^/stock/(?:[^?#%]|%3[Aa])+`,
		"deploy/gateway TestGateway/private routes"},
	{"gateway: payments are public", "deploy/gateway/nginx.conf",
		`+/cancel(?:`, `+/(?:cancel|pay)(?:`,
		"deploy/gateway TestGateway/private routes"},
	{"gateway: an escaped slash is public", "deploy/gateway/nginx.conf",
		`"~^/stock/(?:[^/?#%]|%3[Aa])+`, `"~^/stock/(?:[^/?#])+`,
		"deploy/gateway TestGateway/private routes"},
	{"gateway: metrics are public behind another proxy", "deploy/gateway/nginx.conf",
		"            if ($holdfast_forwarded) { return 404; }\n", "",
		"deploy/gateway TestGateway/metrics"},
	{"vegeta: targets always have keys", "loadtest/vegeta/main.go",
		"if keys {", "if true {",
		"loadtest/vegeta TestWriteWithoutKeys"},
}
