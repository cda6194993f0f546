//go:build mutants

package mutants

// gateway are mutants of deploy/gateway and of the way to it. More of them are in
// deploy/gateway itself.
var gateway = []mutant{
	{"gateway: a keyed refusal by a count read before", "deploy/gateway/gateway.lua",
		"if refusal or levels:add", "if levels:add",
		"deploy/gateway TestGateway/a key"},
	{"gateway: a keyed refusal whatever was added since", "deploy/gateway/gateway.lua",
		"refusal == seen", "refusal",
		"deploy/gateway TestGateway/a key"},
	{"gateway: a count of an earlier generation", "deploy/gateway/gateway.lua",
		"floor(epoch / EPOCHS) ~= generation", "floor(epoch / EPOCHS) > generation",
		"deploy/gateway TestGateway/generations"},
	{"gateway: audits are public", "deploy/gateway/nginx.conf",
		`"~^/stock/(?:[^/?#%]|%3[Aa])+`, `"~^/stock/(?:[^?#%]|%3[Aa])+`,
		"deploy/gateway TestGateway/private routes"},
	{"gateway: an escaped slash is public", "deploy/gateway/nginx.conf",
		`"~^/stock/(?:[^/?#%]|%3[Aa])+`, `"~^/stock/(?:[^/?#])+`,
		"deploy/gateway TestGateway/private routes"},
	{"gateway: metrics for everybody behind another proxy", "deploy/gateway/nginx.conf",
		"            if ($holdfast_forwarded) { return 404; }\n", "",
		"deploy/gateway TestGateway/metrics"},
	{"vegeta: targets always have keys", "loadtest/vegeta/main.go",
		"if keys {", "if true {",
		"loadtest/vegeta TestWriteWithoutKeys"},
}
