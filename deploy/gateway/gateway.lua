-- This module refuses orders for sold-out SKUs, so that they cost the service
-- nothing.
--
-- It refuses an order only if it is certain, and passes all others to an instance,
-- which decides. It is certain if every SKU of the order has a current count at
-- the gate, and one SKU has fewer units than the order asks for and none in
-- flight. Units in flight may come back. The module caches counts for a bounded
-- time. It does not see units that are added within that time.
--
-- An order with an Idempotency-Key may have been answered 201 before, which only
-- the ledger knows. The module refuses it only if an instance has refused the same
-- request before, and the gate cannot have admitted it since: see key_of.
--
-- The keys in Redis are those of package gate:
--
--   holdfast:{LEDGERID}:generation     string: `GENERATION SEGMENTS BEAT`; SEGMENTS is 0 without segments; BEAT
--                                      changes every second while an instance uses this Redis
--   holdfast:{LEDGERID}:count          hash: SKU, or SKU/0, SKU/1… with segments → `EPOCH AVAILABLE IN_FLIGHT CHANGE FENCE`
--
-- A cluster has, instead of the second key, one for each SKU or segment:
--
--   holdfast:{LEDGERID:SKU}:count      hash: SKU → `EPOCH AVAILABLE IN_FLIGHT CHANGE FENCE`
--
-- An epoch is GENERATION * 2^28 + n. A count is current only if its generation is
-- the one in the generation key.

local cjson = require "cjson.safe"
local found, redis = pcall(require, "resty.redis")
if not found then
  redis = require "nginx.redis" -- the name of the same module on Debian
end

local find, sub, match, lower = string.find, string.sub, string.match, string.lower
local floor = math.floor
local now = ngx.now

local ENOUGH = 1000000 -- more units than an order can ask for
local EPOCHS = 2 ^ 28 -- epochs in a generation
local MAX_SEGMENTS = 64 -- segments of a SKU

local MAX_BODY = 8192 -- bytes of an order that may be refused here; 20 lines need a quarter of it
local MAX_LINES, MAX_QUANTITY, MAX_ID, MAX_KEY = 20, 1000, 64, 255

local REDIS_TIMEOUT = 100 -- milliseconds, for connecting and for each answer
local REDIS_IDLE = 30000 -- milliseconds for which an idle connection is kept
local REDIS_POOL = 64 -- connections kept by each worker
local REDIS_PAUSE = 0.2 -- seconds for which Redis is not asked after a failure
local AVAILABLE_TTL = 0.02 -- seconds for which an available SKU is cached
local GATE_TTL = 1 -- seconds after which the service's strategy is read again: see gated
local NO_GATE_TTL = 30 -- the same after the answer "no gate"
local STALE_TTL = 5 -- seconds for which an answer is used if it cannot be read again
local BEAT_TIMEOUT = 5 -- seconds without a change of BEAT after which the counts are not used
local REFUSAL_TTL = 60 -- seconds for which an instance's refusal of a keyed order is remembered
local WARN_INTERVAL = 10 -- seconds between two warnings of the same kind

-- results lists the outcomes of an order at the gateway, each with its reason.
local results = {
  { "refused", "sold-out" }, -- without a key
  { "refused", "repeated" }, -- with a key, and an instance has refused the same request before
  { "passed", "available" }, -- the units are available, or may come back
  { "passed", "key" }, -- sold out, but the key may already name an order
  { "passed", "unusual" }, -- not a plain order
  { "passed", "no-count" }, -- a SKU has no current count
  { "passed", "no-generation" }, -- Redis has no counts of this ledger, or no instance updates them
  { "passed", "no-gate" }, -- the service's strategy keeps no counts, or is not known
  { "passed", "redis" }, -- Redis does not answer
  { "passed", "no-ledger" }, -- the ledger's ID is not known
}

-- problems maps a status of nginx to the problem that the gateway answers. Where an
-- instance has the same problem, the texts are the same.
local malformed = { status = 400, type = "malformed", title = "Malformed request", detail = "The request is not valid HTTP." }
local missing = { status = 404, type = "not-found", title = "Not found", detail = "There is no such path." }
local busy = { status = 503, type = "busy", title = "Busy", detail = "There are too many requests. Nothing was cut; try again.", retry = true }
local unavailable = {
  status = 503, type = "unavailable", title = "Unavailable", retry = true,
  detail = "No instance answered; the outcome of a change is unknown. Try again; repeat an order with the same Idempotency-Key.",
}
local internal = {
  status = 500, type = "internal", title = "Internal error",
  detail = "The service failed. The log has the cause under the request ID.",
}
local problems = {
  [400] = malformed, [414] = malformed, [494] = malformed, [501] = malformed, [505] = malformed,
  [403] = missing, [404] = missing,
  [405] = { status = 405, type = "method-not-allowed", title = "Method not allowed", detail = "The path does not support this method." },
  [413] = { status = 413, type = "too-large", title = "Body too large", detail = "The body is larger than 65536 bytes." },
  [429] = busy, [503] = busy,
  [502] = unavailable, [504] = unavailable,
}
local types = { "malformed", "not-found", "method-not-allowed", "too-large", "busy", "unavailable", "internal" }

local _M = {}

-- Dictionaries that all workers share.
local levels -- SKU → units, 1 if in segments, mark; names that are not SKUs begin with a space
local refusals -- keyed request → the SKU and its mark when an instance answered sold out
local counters -- counter → number

local prefix -- of every key in Redis; nil without a ledger ID: no order is refused
local clustered -- whether Redis is a cluster, from its last answer
local host, port, database, user, password
local sold_out_ttl -- seconds for which a sold-out SKU is cached

-- configured returns an environment variable, or default if it is empty or not set.
local function configured(name, default)
  local value = os.getenv(name)
  if value == nil or value == "" then
    return default
  end
  return value
end

-- ledger_id returns the ledger's ID in the form that the keys have, or nil and the
-- reason. The configured ID may be in upper or lower case, with or without
-- hyphens: SELECT HEX(id) returns it without.
local function ledger_id()
  local text = configured("HOLDFAST_LEDGER_ID")
  local path = configured("HOLDFAST_LEDGER_ID_FILE")
  if not text and path then
    local file, err = io.open(path)
    if not file then
      return nil, "opening HOLDFAST_LEDGER_ID_FILE: " .. err
    end
    text = file:read("*l")
    file:close()
  end
  if not text then
    return nil, "neither HOLDFAST_LEDGER_ID nor HOLDFAST_LEDGER_ID_FILE is set"
  end
  local hex = text:gsub("%s", ""):gsub("-", ""):lower()
  if #hex ~= 32 or find(hex, "[^0-9a-f]") then
    return nil, "the ledger's ID is not 32 hexadecimal digits"
  end
  return table.concat({ sub(hex, 1, 8), sub(hex, 9, 12), sub(hex, 13, 16), sub(hex, 17, 20), sub(hex, 21) }, "-")
end

-- init reads the configuration. nginx calls it once, before it starts workers.
function _M.init()
  levels, refusals, counters = ngx.shared.holdfast_levels, ngx.shared.holdfast_refusals, ngx.shared.holdfast_counters
  host, port = match(configured("HOLDFAST_GATEWAY_REDIS", "127.0.0.1:6379"), "^(.+):(%d+)$")
  if not host then
    error("HOLDFAST_GATEWAY_REDIS: not host:port")
  end
  database = configured("HOLDFAST_GATEWAY_REDIS_DB", "0")
  user = configured("HOLDFAST_GATEWAY_REDIS_USER")
  password = configured("HOLDFAST_GATEWAY_REDIS_PASSWORD")
  local milliseconds = tonumber(configured("HOLDFAST_GATEWAY_SOLD_OUT_MS", "200"))
  if not milliseconds or milliseconds < 1 or milliseconds > 10000 then
    error("HOLDFAST_GATEWAY_SOLD_OUT_MS: not between 1 and 10000")
  end
  sold_out_ttl = milliseconds / 1000
  local id, err = ledger_id()
  if id then
    prefix = "holdfast:{" .. id
  else
    ngx.log(ngx.WARN, "passing every order to an instance: ", err)
  end
end

-- warn logs a warning, at most one of a kind in WARN_INTERVAL.
local function warn(kind, ...)
  if levels:add(" warned " .. kind, true, WARN_INTERVAL) then
    ngx.log(ngx.WARN, ...)
  end
end

-- count adds one to the counter with this name.
local function count(...)
  counters:incr(table.concat({ ... }, " "), 1, 0)
end

-- lines_of returns the lines of an order, or nil if the body is unusual in any
-- way: an instance then reports what is wrong. It accepts fewer bodies than the
-- service, and none that the service refuses: no escapes in strings, and no
-- duplicate or unknown members.
local function lines_of(body)
  local at = 1
  local function token(pattern)
    local from, to, text = find(body, "^[ \t\r\n]*" .. pattern, at)
    if not from then
      return nil
    end
    at = to + 1
    return text or true
  end
  local function id()
    local text = token('"(%w[%w._:%-]*)"')
    return text and #text <= MAX_ID and text or nil
  end
  -- object reads an object that has exactly these members.
  local function object(readers)
    local values = {}
    if not token("{") then
      return nil
    end
    repeat
      local name = token('"([a-z_]+)"[ \t\r\n]*:')
      local read = name and readers[name]
      if not read or values[name] then
        return nil
      end
      values[name] = read()
      if not values[name] then
        return nil
      end
    until not token(",")
    if not token("}") then
      return nil
    end
    for name in pairs(readers) do
      if not values[name] then
        return nil
      end
    end
    return values
  end
  local function quantity()
    local n = tonumber(token("([1-9]%d*)"))
    return n and n <= MAX_QUANTITY and n or nil
  end
  local line = { sku = id, quantity = quantity }
  local function lines()
    local all, skus = {}, {}
    if not token("%[") then
      return nil
    end
    repeat
      local one = object(line)
      if not one or skus[one.sku] or #all == MAX_LINES then
        return nil
      end
      skus[one.sku] = true
      all[#all + 1] = one
    until not token(",")
    return token("%]") and all
  end
  local order = object({ buyer_id = id, lines = lines })
  return order and token("$") and order.lines
end

-- is_json reports whether a Content-Type means JSON in UTF-8.
local function is_json(content_type)
  if type(content_type) ~= "string" then
    return false -- missing or repeated
  end
  local rest = match(lower(content_type), "^application/json[ \t]*(.*)$")
  local charset = rest and match(rest, "^;[ \t]*charset=(.-)[ \t]*$")
  return rest == "" or charset == "utf-8" or charset == '"utf-8"'
end

-- read_order returns the lines of an order that may be refused here, its body, and
-- its Idempotency-Key if it has one. For any other request it returns nil.
local function read_order()
  -- request_uri is the path as sent. The service accepts no other spelling.
  if ngx.var.request_method ~= "POST" or ngx.var.request_uri ~= "/orders" then
    return nil
  end
  local headers, err = ngx.req.get_headers(64)
  if err or headers["content-encoding"] ~= nil or not is_json(headers["content-type"]) then
    return nil
  end
  local key = headers["idempotency-key"]
  if key ~= nil and (type(key) ~= "string" or #key > MAX_KEY or not find(key, "^[!-~]+$")) then
    return nil
  end
  ngx.req.read_body()
  local body = ngx.req.get_body_data() -- nil if nginx has written the body to disk
  if not body or #body > MAX_BODY then
    return nil
  end
  return lines_of(body), body, key
end

-- key_of returns the name of a keyed request in refusals. Two requests have the same
-- name if their keys and their bodies are the same, byte for byte.
--
-- Such a request can be refused again without an instance. The mark of a SKU
-- consists of the epoch of its count, the number of the last addition to it, and
-- the run ID of the Redis server that has it. As long as the mark is the same, the
-- sum of the units available and in flight does not grow. So if there were too few
-- units for the order before an instance answered sold out, and the mark is still
-- the same, no instance can have accepted the order since. The key named no order
-- before, because the instance looks the key up before it refuses. The mark must
-- be read from Redis each time: one cached for 200 ms could miss a new 201. See
-- docs/decisions/0035-gateway-keys.md.
local function key_of(key, body)
  return ngx.md5_bin(key .. "\0" .. body)
end

-- gated reports whether the service's strategy keeps counts at a gate. It returns
-- false, "gate", or "sound" if the strategy is sound too. Without a gate, counts
-- that an earlier strategy has left in Redis are meaningless. During a change of
-- strategy the instances give different answers. The answer "no gate" is cached
-- for longer, because it is safe: the gateway then refuses nothing by counts.
local function gated()
  local answer = levels:get(" gated")
  if levels:get(" fresh") or not levels:add(" asking", true, 2) then
    return answer
  end
  local reply = ngx.location.capture("/gateway/strategies")
  local document = reply.status == 200 and not reply.truncated and cjson.decode(reply.body)
  local known = false
  answer = false
  if type(document) == "table" and type(document.strategies) == "table" then
    for _, strategy in ipairs(document.strategies) do
      if strategy.name == document.running then
        known = true
        answer = type(strategy.gate) == "string" and (strategy.sound == true and "sound" or "gate")
      end
    end
  end
  levels:set(" gated", answer, known and not answer and NO_GATE_TTL or STALE_TTL)
  levels:set(" fresh", true, known and not answer and NO_GATE_TTL or GATE_TTL)
  levels:delete(" asking")
  return answer
end

-- connect returns a connection to a Redis server, from the pool if possible.
local function connect(host, port)
  local client = redis:new()
  client:set_timeout(REDIS_TIMEOUT)
  local ok, err = client:connect(host, port, { pool = host .. ":" .. port .. "/" .. database })
  if not ok then
    return nil, err
  end
  if client:get_reused_times() == 0 then
    if user then
      ok, err = client:auth(user, password)
    elseif password then
      ok, err = client:auth(password)
    end
    if ok and database ~= "0" then
      ok, err = client:select(database)
    end
    if not ok then
      client:close()
      return nil, err
    end
  end
  return client
end

-- query_server sends all commands in one pipeline. It returns their answers, and
-- the run ID of the server, which changes when the server restarts.
local function query_server(host, port, commands)
  local client, err = connect(host, port)
  if not client then
    return nil, err
  end
  client:init_pipeline(#commands + 1)
  client:info("server")
  for _, command in ipairs(commands) do
    client[command[1]](client, unpack(command, 2))
  end
  local answers
  answers, err = client:commit_pipeline()
  if not answers then
    client:close()
    return nil, err
  end
  client:set_keepalive(REDIS_IDLE, REDIS_POOL)
  local info = table.remove(answers, 1)
  local run = type(info) == "string" and match(info, "run_id:(%x+)")
  if not run then
    return nil, "reading the run ID from INFO server: " .. tostring(type(info) == "table" and info[2] or info)
  end
  clustered = find(info, "redis_mode:cluster", 1, true) ~= nil
  return answers, run
end

-- query sends the commands to the configured Redis. On a cluster it sends those
-- that the node redirects to the nodes that have their keys. It returns the
-- answers, and for each the run ID of the server. An error reply is an error.
local function query(commands)
  local answers, run = query_server(host, port, commands)
  if not answers then
    return nil, run
  end
  local runs, moved = {}, {}
  for i, answer in ipairs(answers) do
    runs[i] = run
    if type(answer) == "table" and answer[1] == false then
      local there = match(answer[2], "^MOVED %d+ (.+:%d+)$")
      if not there then
        return nil, answer[2]
      end
      moved[there] = moved[there] or {}
      table.insert(moved[there], i)
    end
  end
  for there, which in pairs(moved) do
    local again = {}
    for n, i in ipairs(which) do
      again[n] = commands[i]
    end
    local node, node_port = match(there, "^(.+):(%d+)$")
    local more
    more, run = query_server(node, node_port, again)
    if not more then
      return nil, run
    end
    for n, i in ipairs(which) do
      if type(more[n]) == "table" and more[n][1] == false then
        return nil, more[n][2]
      end
      answers[i], runs[i] = more[n], run
    end
  end
  return answers, runs
end

-- count_of returns the command that reads a count.
local function count_of(sku)
  return { "hget", prefix .. (clustered and ":" .. sku or "") .. "}:count", sku }
end

-- sum adds up the counts of a SKU: one, or one for each segment. It returns nil if
-- a count is missing or has another generation. It also returns nil if the epochs
-- differ: then the segments are being filled.
local function sum(answers, runs, first, last, generation)
  local all, marks = { available = 0, in_flight = 0 }, {}
  for n = first, last do
    local epoch, available, in_flight, change = match(tostring(answers[n]), "^(%d+) (%-?%d+) (%-?%d+) (%d+)")
    if not epoch or floor(epoch / EPOCHS) ~= generation or epoch ~= (all.epoch or epoch) then
      return nil
    end
    all.epoch = epoch
    all.available = all.available + available
    all.in_flight = all.in_flight + in_flight
    marks[#marks + 1] = change .. "@" .. runs[n]
  end
  all.mark = ngx.md5(all.epoch .. ":" .. table.concat(marks, ","))
  return all
end

-- beating reports whether the text, which contains BEAT, has changed within
-- BEAT_TIMEOUT. The first text counts as a change.
local function beating(text)
  local before, since = match(levels:get(" beat") or "", "^(.*)|(.*)$")
  if before ~= text then
    levels:set(" beat", text .. "|" .. now())
    return true
  end
  return now() - since < BEAT_TIMEOUT
end

-- read_counts returns the counts of the SKUs by SKU; a SKU without a current count
-- is missing. On failure it returns nil, the reason why orders must pass, and the
-- cause.
local function read_counts(skus)
  local key = prefix .. "}:generation"
  local answers, runs = query({ { "get", key } })
  if not answers then
    return nil, "redis", runs
  end
  local text = tostring(answers[1])
  local generation, segments = match(text, "^(%d+) (%d+) %d+$")
  generation, segments = tonumber(generation), tonumber(segments)
  if not generation or segments > MAX_SEGMENTS then
    return nil, "no-generation", "it has no valid key " .. key
  elseif not beating(text) then
    return nil, "no-generation", "no instance updates its key " .. key
  end
  local commands = {}
  for _, sku in ipairs(skus) do
    if segments == 0 then
      commands[#commands + 1] = count_of(sku)
    end
    for n = 0, segments - 1 do
      commands[#commands + 1] = count_of(sku .. "/" .. n)
    end
  end
  answers, runs = query(commands)
  if not answers then
    return nil, "redis", runs
  end
  local counts, parts = {}, math.max(segments, 1)
  for i, sku in ipairs(skus) do
    local all = sum(answers, runs, (i - 1) * parts + 1, i * parts, generation)
    if all then
      all.segmented = segments > 0
      counts[sku] = all
    end
  end
  return counts
end

-- obtainable returns the most units that an order may still get. Units in flight may
-- come back, so with any in flight there is no limit.
local function obtainable(one)
  if one.in_flight ~= 0 then
    return ENOUGH
  end
  return one.available
end

-- before compares lines in the order in which the gate checks them, so that the
-- gateway names the same SKU as an instance: by SKU, or by segment name.
local function before(a, b)
  return (a.segmented and a.sku .. "/" or a.sku) < (b.segmented and b.sku .. "/" or b.sku)
end

-- head sets the status and the headers of a problem document, and returns its body.
-- Proxy-Status (RFC 9209) marks answers of the gateway; those of an instance do not have
-- it.
local function head(problem, sku)
  local body = '{"type":"/problems/' .. problem.type .. '","title":"' .. problem.title .. '","status":' .. problem.status
    .. ',"detail":"' .. problem.detail .. '"' .. (sku and ',"sku":"' .. sku .. '"' or "") .. "}"
  ngx.status = problem.status
  ngx.header["Content-Type"] = "application/problem+json"
  ngx.header["Content-Length"] = #body
  ngx.header["X-Request-Id"] = ngx.var.holdfast_request_id
  ngx.header["Proxy-Status"] = "holdfast-gateway"
  if problem.retry then
    ngx.header["Retry-After"] = "1"
  end
  if problem.status == 405 then
    ngx.header["Allow"] = ngx.var.holdfast_allowed
  end
  return body
end

-- send answers the request with a problem document.
local function send(problem, sku)
  ngx.print(head(problem, sku))
  return ngx.exit(ngx.HTTP_OK) -- ends the request; the status is already set
end

local sold_out_problem = {
  status = 409, type = "sold-out", title = "Sold out", detail = "Fewer units are left than were asked for. Nothing was cut.",
}

-- decide returns the result for the order and its reason, as in results. For a
-- refused order it also returns the SKU.
local function decide()
  if not prefix then
    return "passed", "no-ledger"
  end
  local lines, body, key = read_order()
  if not lines then
    return "passed", "unusual"
  end
  local strategy = gated()
  if not strategy then
    return "passed", "no-gate"
  end
  local request = key and strategy == "sound" and key_of(key, body)
  local refusal = request and refusals:get(request)

  local began = now() -- the cache time of a count begins before it is read
  local unknown = {}
  for _, line in ipairs(lines) do
    local most, segmented, mark = match(levels:get(line.sku) or "", "^(%-?%d+) (%d) (%x+)$")
    -- One request reads the count again before the cached one expires. Otherwise
    -- all requests would read it at once.
    if refusal or levels:add(" known " .. line.sku, true, sold_out_ttl / 2) then
      most = nil
    end
    line.most, line.segmented, line.mark = tonumber(most), segmented == "1", mark
    if not most then
      unknown[#unknown + 1] = line.sku
    end
  end
  local counts
  if #unknown > 0 then
    if levels:get(" redis failed") then
      return "passed", "redis"
    end
    local reason, err
    counts, reason, err = read_counts(unknown)
    if reason == "redis" then
      levels:set(" redis failed", true, REDIS_PAUSE)
      warn(reason, "passing orders to instances: reading Redis at ", host, ":", port, ": ", err)
    elseif reason then
      warn(reason, "passing orders to instances: Redis at ", host, ":", port, ", database ", database, " is not the one that the service uses: ", err,
        ", although the strategy keeps counts; check HOLDFAST_LEDGER_ID against the ledger, and HOLDFAST_GATEWAY_REDIS")
    end
    if reason then
      return "passed", reason
    end
  end
  for _, line in ipairs(lines) do
    if not line.most then
      local one = counts[line.sku]
      if not one then
        return "passed", "no-count" -- an instance fills it, or answers that the SKU is unknown
      end
      line.most, line.segmented, line.mark, line.read = obtainable(one), one.segmented, one.mark, true
    end
  end

  table.sort(lines, before)
  local refused
  for _, line in ipairs(lines) do
    local short = line.most < line.quantity
    if short and not refused then
      refused = line
    end
    if line.read then
      local ttl = (short and sold_out_ttl or math.min(AVAILABLE_TTL, sold_out_ttl)) - (now() - began)
      if ttl >= 0.001 then
        levels:set(line.sku, line.most .. " " .. (line.segmented and 1 or 0) .. " " .. line.mark, ttl)
      end
    end
  end
  if not refused then
    return "passed", "available"
  elseif not key then
    return "refused", "sold-out", refused.sku
  end
  local seen = refused.sku .. " " .. refused.mark
  if refusal == seen then
    return "refused", "repeated", refused.sku
  end
  ngx.ctx.request, ngx.ctx.seen = request, seen -- note reads them
  return "passed", "key"
end

-- check refuses the order, or returns to let it pass.
function _M.check()
  local result, reason, sku = decide()
  count("orders", result, reason)
  if result == "refused" then
    return send(sold_out_problem, sku)
  end
end

-- translate begins the answer malformed in place of an instance's. The HTTP server of an
-- instance is stricter than nginx, and refuses requests in plain text before the service
-- sees them. The charset of that text stays in the media type, as nginx keeps it apart. It
-- is a header filter.
function _M.translate()
  if ngx.status == 400 and find(ngx.header["Content-Type"] or "", "text/plain", 1, true) == 1 then
    count("problems", malformed.type)
    ngx.ctx.body = head(malformed)
  end
end

-- note writes the body that translate has begun, or records that an instance has refused
-- a keyed order as sold out. It is a body filter.
function _M.note()
  local body, request = ngx.ctx.body, ngx.ctx.request
  if body then
    ngx.arg[1], ngx.arg[2] = body, true
    ngx.ctx.body = ""
  elseif request and ngx.status == 409 and find(ngx.arg[1], '"type":"/problems/sold-out"', 1, true) then
    refusals:set(request, ngx.ctx.seen, REFUSAL_TTL)
  end
end

-- problem answers with a problem instead of an error page of nginx.
function _M.problem()
  local problem = problems[ngx.status] or internal
  count("problems", problem.type)
  return send(problem)
end

-- metrics writes the counters in the text format of Prometheus.
function _M.metrics()
  ngx.header["Content-Type"] = "text/plain; version=0.0.4; charset=utf-8"
  ngx.say("# HELP holdfast_gateway_orders_total Orders by result, refused by the gateway or passed to an instance, and reason.")
  ngx.say("# TYPE holdfast_gateway_orders_total counter")
  for _, one in ipairs(results) do
    ngx.say('holdfast_gateway_orders_total{result="', one[1], '",reason="', one[2], '"} ',
      counters:get("orders " .. one[1] .. " " .. one[2]) or 0)
  end
  ngx.say("# HELP holdfast_gateway_problems_total Errors answered by the gateway itself, without sold-out, by problem type.")
  ngx.say("# TYPE holdfast_gateway_problems_total counter")
  for _, name in ipairs(types) do
    ngx.say('holdfast_gateway_problems_total{type="', name, '"} ', counters:get("problems " .. name) or 0)
  end
end

return _M
