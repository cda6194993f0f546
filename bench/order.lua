-- Sends orders as a real client does: each has its own buyer, and its own
-- idempotency key if the run is keyed.
-- Arguments: the number of SKUs, "keyed" or "plain", the name of the run, which is
-- part of every key so that no two runs share one, and HOST:PORT of each instance. Each
-- thread sends to one of them.
local threads, next_id = {}, 1

function setup(thread)
	thread:set("id", next_id)
	next_id = next_id + 1
	table.insert(threads, thread)
end

function init(args)
	skus, keyed, run, n = tonumber(args[1]), args[2] == "keyed", args[3], 0
	created, refused, other = 0, 0, 0
	math.randomseed(id)
	local host, port = string.match(args[4 + id % (#args - 3)], "^(.*):(%d+)$")
	wrk.thread.addr = wrk.lookup(host, port)[1]
	headers = { ["Content-Type"] = "application/json" }
end

function request()
	n = n + 1
	local sku = "hot"
	if skus > 1 then
		sku = "s" .. math.random(skus)
	end
	if keyed then
		headers["Idempotency-Key"] = run .. "-" .. id .. "-" .. n
	end
	return wrk.format("POST", "/orders", headers,
		'{"buyer_id":"u-' .. id .. "-" .. n .. '","lines":[{"sku":"' .. sku .. '","quantity":1}]}')
end

function response(status)
	if status == 201 then
		created = created + 1
	elseif status == 409 then
		refused = refused + 1
	else
		other = other + 1
	end
end

function done(summary, latency)
	local c, r, o = 0, 0, 0
	for _, thread in ipairs(threads) do
		c = c + thread:get("created")
		r = r + thread:get("refused")
		o = o + thread:get("other")
	end
	local e = summary.errors
	io.write(string.format("\nRESULT created=%d refused=%d other=%d broken=%d microseconds=%d p50=%d p99=%d\n",
		c, r, o, e.connect + e.read + e.write + e.timeout, summary.duration, latency:percentile(50), latency:percentile(99)))
end
