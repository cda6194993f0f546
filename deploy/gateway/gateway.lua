-- Refuses orders of what is sold out, so that they cost the service nothing.
--
-- It refuses only what it is sure of. Everything else goes to an instance, which
-- decides. It is sure if every SKU of the order has a current count at the gate,
-- and of one SKU fewer units are left than the order asks for while none is in
-- flight: units in flight may come back. It believes what it read of a SKU for a
-- bounded time. Within that time it does not see units that were added.
--
-- An order with an Idempotency-Key may have been answered 201 before, and only
-- the ledger knows. It is refused here only if an instance has refused the same
-- request before, and the gate cannot have let it through since: see key_of.
--
-- The keys in Redis are those of package gate:
--
--   holdfast:{LEDGERID}:generation     string: `GENERATION SEGMENTS BEAT`; SEGMENTS is 0 without segments; BEAT
--                                      changes every second while an instance uses this Redis
--   holdfast:{LEDGERID}:count          hash: SKU, or SKU/0, SKU/1… with segments → `EPOCH LEFT FLYING CHANGE FENCE`
--
-- and on a cluster instead of the second, one for each SKU or segment:
--
--   holdfast:{LEDGERID:SKU}:count      hash: SKU → `EPOCH LEFT FLYING CHANGE FENCE`
--
-- An epoch is GENERATION * 2^28 + n. A count of another generation than the
-- current one is not believed.

local cjson = require "cjson.safe"
local found, redis = pcall(require, "resty.redis")
if not found then
  redis = require "nginx.redis" -- Debian's name for it
end

local find, sub, match, lower = string.find, string.sub, string.match, string.lower
local floor = math.floor
local now = ngx.now

local ANY = 1000000 -- more units than any order asks for
local EPOCHS = 2 ^ 28 -- in a generation
local MAX_SEGMENTS = 64 -- of a SKU

local MAX_BODY = 8192 -- of an order that is looked at; 20 lines need a fourth of it
local MAX_LINES, MAX_QUANTITY, MAX_ID, MAX_KEY = 20, 1000, 64, 255

local REDIS_TIMEOUT = 100 -- milliseconds, for connecting and for each answer
local REDIS_IDLE, REDIS_POOL = 30000, 64 -- of kept connections: milliseconds, number in a worker
local AWAY = 0.2 -- seconds for which a Redis that failed is not asked again
local IN_STOCK = 0.02 -- seconds for which a SKU that can be had is not asked for again
local GATED, UNGATED, OLD = 1, 30, 5 -- seconds for which the service's strategy is believed: see gated
local STILL = 5 -- seconds after which a beat that has not changed is not believed any more
local REFUSED = 60 -- seconds for which an instance's refusal of a keyed order is remembered
local QUIET = 10 -- seconds between two warnings of the same kind

-- results are what becomes of an order, and why.
local results = {
  { "refused", "sold-out" }, -- without a key
  { "refused", "repeated" }, -- with a key that an instance has refused before
  { "passed", "available" }, -- the units are there, or may come back
  { "passed", "key" }, -- sold out, but the key may name an order
  { "passed", "unusual" }, -- not a plain order
  { "passed", "no-count" }, -- a SKU has no current count
  { "passed", "no-generation" }, -- Redis has no counts of this ledger, or no instance uses them
  { "passed", "no-gate" }, -- the service's strategy keeps no counts, or is not known
  { "passed", "redis" }, -- Redis does not answer
  { "passed", "no-ledger" }, -- the ledger's ID is not known
}

-- problems are the gateway's own errors by nginx's status, in an instance's words.
local malformed = { status = 400, type = "malformed", title = "Malformed request", detail = "The request cannot be read as HTTP." }
local missing = { status = 404, type = "not-found", title = "Not found", detail = "No such path." }
local busy = { status = 503, type = "busy", title = "Busy", detail = "Too much at once. Nothing was cut; try again.", retry = true }
local unavailable = {
  status = 503, type = "unavailable", title = "Unavailable", retry = true,
  detail = "No instance answered and the outcome is open. Try again, with the same Idempotency-Key if an order is at stake.",
}
local internal = {
  status = 500, type = "internal", title = "Internal error",
  detail = "The service failed. The log has the cause under the request ID.",
}
local problems = {
  [400] = malformed, [414] = malformed, [494] = malformed, [501] = malformed, [505] = malformed,
  [403] = missing, [404] = missing,
  [405] = { status = 405, type = "method-not-allowed", title = "Method not allowed", detail = "The path does not answer to this method." },
  [413] = { status = 413, type = "too-large", title = "Body too large", detail = "A body may have 65536 bytes at most." },
  [429] = busy, [503] = busy,
  [502] = unavailable, [504] = unavailable,
}
local types = { "malformed", "not-found", "method-not-allowed", "too-large", "busy", "unavailable", "internal" }

local _M = {}

-- Shared by all workers.
local levels -- by SKU: units, whether in segments, mark; other names begin with a space
local refusals -- by request: the SKU and its mark when an instance said sold out
local counters

local prefix -- of every key in Redis; nil: nothing is ever refused
local clustered -- whether Redis is a cluster, as of the last answer
local host, port, database, user, password
local sold_out -- seconds

-- configured reads a variable, an empty one being none.
local function configured(name, default)
  local value = os.getenv(name)
  if value == nil or value == "" then
    return default
  end
  return value
end

-- ledger_id is the ledger's ID as the keys have it. It may be given with or
-- without hyphens, in either case: SELECT HEX(id) gives it without.
local function ledger_id()
  local text = configured("HOLDFAST_LEDGER_ID")
  local path = configured("HOLDFAST_LEDGER_ID_FILE")
  if not text and path then
    local file, err = io.open(path)
    if not file then
      return nil, "HOLDFAST_LEDGER_ID_FILE: " .. err
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

-- init reads the configuration, once, before there are workers.
function _M.init()
  levels, refusals, counters = ngx.shared.holdfast_levels, ngx.shared.holdfast_refusals, ngx.shared.holdfast_counters
  host, port = match(configured("HOLDFAST_GATEWAY_REDIS", "127.0.0.1:6379"), "^(.+):(%d+)$")
  if not host then
    error("HOLDFAST_GATEWAY_REDIS is not host:port")
  end
  database = configured("HOLDFAST_GATEWAY_REDIS_DB", "0")
  user = configured("HOLDFAST_GATEWAY_REDIS_USER")
  password = configured("HOLDFAST_GATEWAY_REDIS_PASSWORD")
  local milliseconds = tonumber(configured("HOLDFAST_GATEWAY_SOLD_OUT_MS", "200"))
  if not milliseconds or milliseconds < 1 or milliseconds > 10000 then
    error("HOLDFAST_GATEWAY_SOLD_OUT_MS is not between 1 and 10000")
  end
  sold_out = milliseconds / 1000
  local id, err = ledger_id()
  if id then
    prefix = "holdfast:{" .. id
  else
    ngx.log(ngx.WARN, "every order is passed to an instance: ", err)
  end
end

-- warn logs a warning, at most one of a kind every QUIET seconds.
local function warn(kind, ...)
  if levels:add(" warned " .. kind, true, QUIET) then
    ngx.log(ngx.WARN, ...)
  end
end

-- count adds one to a counter.
local function count(...)
  counters:incr(table.concat({ ... }, " "), 1, 0)
end

-- lines_of reads the lines of an order, or nothing from a body in which anything
-- at all is unusual: what is wrong with it is for the service to say. It takes
-- less than the service does, and never more: no escapes in names, no member
-- twice, no member that is unknown.
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
  -- object reads an object with all of these members.
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

-- is_json reports whether a Content-Type announces JSON in UTF-8.
local function is_json(content_type)
  if type(content_type) ~= "string" then
    return false -- missing, or given twice
  end
  local rest = match(lower(content_type), "^application/json[ \t]*(.*)$")
  local charset = rest and match(rest, "^;[ \t]*charset=(.-)[ \t]*$")
  return rest == "" or charset == "utf-8" or charset == '"utf-8"'
end

-- judged returns the lines of an order that may be refused here, its body, and
-- its Idempotency-Key if it has one.
local function judged()
  -- As it was sent: the service does not take another spelling of the path.
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
  local body = ngx.req.get_body_data() -- nil for a body that went to disk
  if not body or #body > MAX_BODY then
    return nil
  end
  return lines_of(body), body, key
end

-- key_of names a keyed request in refusals: the same key and the same body, byte
-- for byte.
--
-- Such a request may be refused again without an instance. The mark of a SKU is
-- the epoch of its count, the number of the last addition to it, and the run of
-- the Redis server that holds it. Under one mark the units left and in flight
-- together never grow. So if they were too few for the order before an instance
-- said sold out, and the mark is still the same, no instance can have accepted
-- the order since. The refusal proves that the key named no order before: the
-- instance had looked. The mark must be read anew each time: one that is believed
-- for 200 ms would miss a new 201. docs/decisions/0035-gateway-keys.md has more.
local function key_of(key, body)
  return ngx.md5_bin(key .. "\0" .. body)
end

-- gated reports whether the service's strategy keeps counts at a gate: false,
-- "gate", or "sound" if the strategy is sound as well. Without a gate, counts
-- that an earlier strategy left in Redis mean nothing any more. While one
-- strategy replaces another the instances differ: the answer "no gate" is
-- believed for longer, so that it outweighs the others.
local function gated()
  local answer = levels:get(" gated")
  if levels:get(" fresh") or not levels:add(" asking", true, 2) then
    return answer
  end
  local reply = ngx.location.capture("/gateway/strategies")
  local told = reply.status == 200 and not reply.truncated and cjson.decode(reply.body)
  local known = false
  answer = false
  if type(told) == "table" and type(told.strategies) == "table" then
    for _, strategy in ipairs(told.strategies) do
      if strategy.name == told.running then
        known = true
        answer = type(strategy.gate) == "string" and (strategy.sound == true and "sound" or "gate")
      end
    end
  end
  levels:set(" gated", answer, known and not answer and UNGATED or OLD)
  levels:set(" fresh", true, known and not answer and UNGATED or GATED)
  levels:delete(" asking")
  return answer
end

-- connected is a connection to a Redis, if possible a kept one.
local function connected(host, port)
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

-- asked sends all commands at once. It returns their answers, and the server's
-- run ID, which changes when the server restarts.
local function asked(host, port, commands)
  local client, err = connected(host, port)
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
    return nil, "INFO server tells no run ID: " .. tostring(type(info) == "table" and info[2] or info)
  end
  clustered = find(info, "redis_mode:cluster", 1, true) ~= nil
  return answers, run
end

-- ask asks the configured Redis. What that, a node of a cluster, does not have it
-- asks of the node that has it. It returns the answers, and of each the run ID of
-- the server. An error reply of Redis is an error.
local function ask(commands)
  local answers, run = asked(host, port, commands)
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
    more, run = asked(node, node_port, again)
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

local function count_of(sku)
  return { "hget", prefix .. (clustered and ":" .. sku or "") .. "}:count", sku }
end

-- sum adds up the counts of a SKU: one, or one for each segment. It returns nil
-- if one is missing or of another generation, or if their epochs differ: then
-- they are being filled.
local function sum(answers, runs, first, last, generation)
  local all, marks = { left = 0, flying = 0 }, {}
  for n = first, last do
    local epoch, left, flying, change = match(tostring(answers[n]), "^(%d+) (%-?%d+) (%-?%d+) (%d+)")
    if not epoch or floor(epoch / EPOCHS) ~= generation or epoch ~= (all.epoch or epoch) then
      return nil
    end
    all.epoch = epoch
    all.left = all.left + left
    all.flying = all.flying + flying
    marks[#marks + 1] = change .. "@" .. runs[n]
  end
  all.mark = ngx.md5(all.epoch .. ":" .. table.concat(marks, ","))
  return all
end

-- beats reports whether the text, which has a beat in it, has changed lately. One
-- that is seen for the first time has.
local function beats(text)
  local before, since = match(levels:get(" beat") or "", "^(.*)|(.*)$")
  if before ~= text then
    levels:set(" beat", text .. "|" .. now())
    return true
  end
  return now() - since < STILL
end

-- read returns the counts of the SKUs by SKU, without those that have no current
-- one; or nil, the reason for which orders must pass, and its cause.
local function read(skus)
  local key = prefix .. "}:generation"
  local answers, runs = ask({ { "get", key } })
  if not answers then
    return nil, "redis", runs
  end
  local text = tostring(answers[1])
  local generation, segments = match(text, "^(%d+) (%d+) %d+$")
  generation, segments = tonumber(generation), tonumber(segments)
  if not generation or segments > MAX_SEGMENTS then
    return nil, "no-generation", "it has no valid key " .. key
  elseif not beats(text) then
    return nil, "no-generation", "no instance writes its key " .. key
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
  answers, runs = ask(commands)
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

-- obtainable is how many units can be had at most, once nothing is in flight.
local function obtainable(one)
  if one.flying ~= 0 then
    return ANY
  end
  return one.left
end

-- before orders lines as the gate does that names the first it refuses: by SKU,
-- where there are segments by the segment's name.
local function before(a, b)
  return (a.segmented and a.sku .. "/" or a.sku) < (b.segmented and b.sku .. "/" or b.sku)
end

-- send ends the request with a problem document. Proxy-Status tells the answers
-- of the gateway from those of an instance (RFC 9209).
local function send(problem, sku)
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
  ngx.print(body)
  return ngx.exit(ngx.HTTP_OK) -- it ends the request; the status is sent
end

local sold_out_problem = {
  status = 409, type = "sold-out", title = "Sold out", detail = "Fewer units are left than were asked for. Nothing was cut.",
}

-- judge returns what becomes of the order and why, as in results; of a refused
-- order also the SKU.
local function judge()
  if not prefix then
    return "passed", "no-ledger"
  end
  local lines, body, key = judged()
  if not lines then
    return "passed", "unusual"
  end
  local strategy = gated()
  if not strategy then
    return "passed", "no-gate"
  end
  local request = key and strategy == "sound" and key_of(key, body)
  local refusal = request and refusals:get(request)

  local began = now() -- what is read now is believed from now on
  local unknown = {}
  for _, line in ipairs(lines) do
    local most, segmented, mark = match(levels:get(line.sku) or "", "^(%-?%d+) (%d) (%x+)$")
    -- One request asks again in good time, so that not all requests do when what
    -- is known expires.
    if refusal or levels:add(" known " .. line.sku, true, sold_out / 2) then
      most = nil
    end
    line.most, line.segmented, line.mark = tonumber(most), segmented == "1", mark
    if not most then
      unknown[#unknown + 1] = line.sku
    end
  end
  local counts
  if #unknown > 0 then
    if levels:get(" away") then
      return "passed", "redis"
    end
    local reason, err
    counts, reason, err = read(unknown)
    if reason == "redis" then
      levels:set(" away", true, AWAY)
      warn(reason, "passing orders to instances: asking Redis at ", host, ":", port, ": ", err)
    elseif reason then
      warn(reason, "passing orders to instances: Redis at ", host, ":", port, ", database ", database, " is not the service's: ", err,
        ", though the strategy keeps counts: check HOLDFAST_LEDGER_ID against the ledger, and HOLDFAST_GATEWAY_REDIS")
    end
    if reason then
      return "passed", reason
    end
  end
  for _, line in ipairs(lines) do
    if not line.most then
      local one = counts[line.sku]
      if not one then
        return "passed", "no-count" -- an instance fills it, or says that there is no such SKU
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
      local left = (short and sold_out or math.min(IN_STOCK, sold_out)) - (now() - began)
      if left >= 0.001 then
        levels:set(line.sku, line.most .. " " .. (line.segmented and 1 or 0) .. " " .. line.mark, left)
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
  ngx.ctx.request, ngx.ctx.seen = request, seen -- for note
  return "passed", "key"
end

-- check refuses the order or returns.
function _M.check()
  local result, reason, sku = judge()
  count("orders", result, reason)
  if result == "refused" then
    return send(sold_out_problem, sku)
  end
end

-- note remembers that an instance refused a keyed order as sold out. It runs as
-- a body filter.
function _M.note()
  local request = ngx.ctx.request
  if request and ngx.status == 409 and find(ngx.arg[1], '"type":"/problems/sold-out"', 1, true) then
    refusals:set(request, ngx.ctx.seen, REFUSED)
  end
end

-- problem answers in place of an error page of nginx.
function _M.problem()
  local problem = problems[ngx.status] or internal
  count("problems", problem.type)
  return send(problem)
end

-- metrics writes the counters in Prometheus' text format.
function _M.metrics()
  ngx.header["Content-Type"] = "text/plain; version=0.0.4; charset=utf-8"
  ngx.say("# HELP holdfast_gateway_orders_total Orders, by whether the gateway refused them or passed them to an instance, and why.")
  ngx.say("# TYPE holdfast_gateway_orders_total counter")
  for _, one in ipairs(results) do
    ngx.say('holdfast_gateway_orders_total{result="', one[1], '",reason="', one[2], '"} ',
      counters:get("orders " .. one[1] .. " " .. one[2]) or 0)
  end
  ngx.say("# HELP holdfast_gateway_problems_total Errors that the gateway answered itself, sold out not counted, by problem type.")
  ngx.say("# TYPE holdfast_gateway_problems_total counter")
  for _, name in ipairs(types) do
    ngx.say('holdfast_gateway_problems_total{type="', name, '"} ', counters:get("problems " .. name) or 0)
  end
end

return _M
