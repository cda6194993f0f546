-- Refuses orders of what is sold out, so that they cost the service nothing.
--
-- It refuses only what it is sure of; everything else goes to an instance, which
-- decides. It is sure where every SKU of the order has a count at the gate, and
-- of one fewer units are left than are asked for while none is in flight: units
-- in flight may come back. What it read of a SKU it believes for a bounded time,
-- within which it does not see that units were added.
--
-- The keys are those of package gate:
--
--   holdfast:{LEDGERID}:count          hash: SKU → `EPOCH LEFT FLYING …`, and where the SKU is kept in segments
--                                      SKU/N → the count of a segment
--   holdfast:{LEDGERID:SKU}:segments   list: 0, 1, 2…
--
-- and on a cluster instead of the first, of each SKU or segment by itself:
--
--   holdfast:{LEDGERID:SKU}:count      hash: SKU → `EPOCH LEFT FLYING …`

local cjson = require "cjson.safe"
local found, redis = pcall(require, "resty.redis")
if not found then
  redis = require "nginx.redis" -- Debian's name for it
end

local find, sub, match = string.find, string.sub, string.match
local now = ngx.now

local ANY = 2 ^ 53 -- more units than any order asks for

local MAX_BODY = 8192 -- of an order that is looked at; 20 lines need a fourth of it
local MAX_LINES, MAX_QUANTITY, MAX_ID = 20, 1000, 64

local REDIS_TIMEOUT = 100 -- milliseconds, for connecting and for each answer
local REDIS_IDLE, REDIS_POOL = 30000, 64 -- of kept connections: milliseconds, number in a worker
local AWAY = 0.2 -- seconds for which a Redis that failed is not asked again
local IN_STOCK = 0.02 -- seconds for which a SKU that can be had is not asked for again
local GATED, UNGATED, OLD = 1, 30, 5 -- seconds for which the service's strategy is believed: see gated

local _M = {}

local levels -- shared by all workers; names that are no SKU begin with a space
local prefix -- of every key; nil: nothing is ever refused
local clustered -- whether Redis is a cluster; nil: not known yet
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
  levels = ngx.shared.holdfast_levels
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

-- warn says once a second at most what is wrong.
local function warn(...)
  if levels:add(" warned", true, 1) then
    ngx.log(ngx.WARN, ...)
  end
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

-- judged returns the lines of a request that may be refused here.
local function judged()
  -- As it came: the service would not take another spelling for the path.
  if ngx.var.request_method ~= "POST" or ngx.var.request_uri ~= "/orders" then
    return nil
  end
  local headers, err = ngx.req.get_headers(64)
  -- A key may have been answered before, with an order; only a ledger knows.
  if err or headers["idempotency-key"] ~= nil or headers["content-encoding"] ~= nil
    or headers["content-type"] ~= "application/json" then
    return nil
  end
  ngx.req.read_body()
  local body = ngx.req.get_body_data() -- nil for a body that went to disk
  if not body or #body > MAX_BODY then
    return nil
  end
  return lines_of(body)
end

-- gated reports whether the service's strategy keeps counts at a gate. Without
-- one, counts that an earlier strategy left in Redis mean nothing any more. While
-- one strategy takes another's place instances differ: no gate anywhere is
-- believed for longer, so that it outweighs what the others say.
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
        known, answer = true, type(strategy.gate) == "string"
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

-- asked sends all commands at once, and returns their answers.
local function asked(host, port, commands)
  local client, err = connected(host, port)
  if not client then
    return nil, err
  end
  client:init_pipeline(#commands)
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
  return answers
end

-- ask is asked of the configured Redis; what that, a node of a cluster, does not
-- have is asked of the node it names. A refusal of Redis is an error.
local function ask(commands)
  local answers, err = asked(host, port, commands)
  if not answers then
    return nil, err
  end
  local moved = {}
  for i, answer in ipairs(answers) do
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
    more, err = asked(node, node_port, again)
    if not more then
      return nil, err
    end
    for n, i in ipairs(which) do
      if type(more[n]) == "table" and more[n][1] == false then
        return nil, more[n][2]
      end
      answers[i] = more[n]
    end
  end
  return answers
end

-- know asks once whether Redis is a cluster.
local function know()
  if clustered ~= nil then
    return true
  end
  local answers, err = ask({ { "info", "cluster" } })
  if not answers then
    return false, err
  end
  clustered = find(answers[1], "cluster_enabled:1", 1, true) ~= nil
  return true
end

local function count_of(sku)
  return { "hget", prefix .. (clustered and ":" .. sku or "") .. "}:count", sku }
end

-- count reads the answer to count_of, or nothing where it is no count.
local function count(answer)
  if type(answer) ~= "string" then
    return nil
  end
  local epoch, left, flying = match(answer, "^(%d+) (%-?%d+) (%-?%d+)")
  if not epoch then
    return nil
  end
  return { epoch = tonumber(epoch), left = tonumber(left), flying = tonumber(flying) }
end

-- sum is the count of a SKU in segments. Segments under two epochs are being
-- filled; so are segments one of which the list does not have yet.
local function sum(counts, length)
  local all = { epoch = counts[1] and counts[1].epoch, left = 0, flying = 0, segmented = true }
  for n = 1, length do
    local one = counts[n]
    if not one or one.epoch ~= all.epoch then
      return nil
    end
    all.left = all.left + one.left
    all.flying = all.flying + one.flying
  end
  local beyond = counts[length + 1]
  if beyond and beyond.epoch == all.epoch then
    return nil
  end
  return all
end

-- read returns the counts of the SKUs by SKU, without those that have none.
local function read(skus)
  local known, unknown = know()
  if not known then
    return nil, unknown
  end
  local commands = {}
  for i, sku in ipairs(skus) do
    commands[2 * i - 1] = count_of(sku)
    commands[2 * i] = { "llen", prefix .. ":" .. sku .. "}:segments" }
  end
  local answers, err = ask(commands)
  if not answers then
    return nil, err
  end
  local counts, lengths, segments = {}, {}, {}
  for i, sku in ipairs(skus) do
    counts[sku] = count(answers[2 * i - 1])
    lengths[i] = tonumber(answers[2 * i]) or 0
    if lengths[i] > 0 then
      for n = 0, lengths[i] do
        segments[#segments + 1] = count_of(sku .. "/" .. n)
      end
    end
  end
  if #segments == 0 then
    return counts
  end
  answers, err = ask(segments)
  if not answers then
    return nil, err
  end
  local at = 0
  for i, sku in ipairs(skus) do
    if lengths[i] > 0 then
      local parts = {}
      for n = 1, lengths[i] + 1 do
        parts[n] = count(answers[at + n])
      end
      at = at + lengths[i] + 1
      local all = sum(parts, lengths[i])
      -- A strategy leaves its keys behind when another takes its place: the
      -- later epoch is the one that counts.
      if not all or not counts[sku] or all.epoch > counts[sku].epoch then
        counts[sku] = all
      end
    end
  end
  return counts
end

-- obtainable is how many units can be had, at most, once all is settled.
local function obtainable(count)
  if count.flying ~= 0 then
    return ANY
  end
  return count.left
end

-- before orders lines as the gate does that names the first it refuses: by SKU,
-- where there are segments by the segment's name.
local function before(a, b)
  return (a.segmented and a.sku .. "/" or a.sku) < (b.segmented and b.sku .. "/" or b.sku)
end

local function refuse(sku)
  local body = '{"type":"/problems/sold-out","title":"Sold out","status":409,'
    .. '"detail":"Fewer units are left than were asked for. Nothing was cut.","sku":"' .. sku .. '"}'
  ngx.status = ngx.HTTP_CONFLICT
  ngx.header["Content-Type"] = "application/problem+json"
  ngx.header["Content-Length"] = #body
  ngx.header["X-Request-Id"] = ngx.var.holdfast_request_id
  ngx.print(body)
  return ngx.exit(ngx.HTTP_OK) -- it ends the request; the status is sent
end

-- check refuses the request or returns.
function _M.check()
  if not prefix then
    return
  end
  local lines = judged()
  if not lines or not gated() then
    return
  end

  local began = now() -- what is read now is believed from now on
  local unknown = {}
  for _, line in ipairs(lines) do
    local most, segmented = levels:get(line.sku)
    -- One request asks again in good time, so that not all of a crowd do when
    -- what is known ends.
    if levels:add(" known " .. line.sku, true, sold_out / 2) then
      most = nil
    end
    line.most, line.segmented = most, segmented == 1
    if not most then
      unknown[#unknown + 1] = line.sku
    end
  end
  local counts
  if #unknown > 0 then
    if levels:get(" away") then
      return
    end
    local err
    counts, err = read(unknown)
    if not counts then
      levels:set(" away", true, AWAY)
      warn("asking Redis: ", err)
      return
    end
  end
  for _, line in ipairs(lines) do
    if not line.most then
      local count = counts[line.sku]
      if not count then
        return -- an instance fills it, or says that there is no such SKU
      end
      line.most, line.segmented, line.read = obtainable(count), count.segmented, true
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
        levels:set(line.sku, line.most, left, line.segmented and 1 or 0)
      end
    end
  end
  if refused then
    return refuse(refused.sku)
  end
end

return _M
