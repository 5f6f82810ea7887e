-- Runs scripts for a server with Lua 5.4. Strings on both pipes follow their length, in eight bytes.
--
-- A call consists of the script, and of the keys and the arguments after their numbers. The commands of the script go to
-- the test, which returns the server's reply. The environment is that of a server: unknown globals are errors, and what
-- only Lua 5.1 has does not exist. In every other call, integers that are unpacked are floats: servers differ in that.
local input, output = io.stdin, io.stdout
local is_float = false

local function receive()
  local size = input:read(8)
  if not size then os.exit(0) end
  size = string.unpack('<I8', size)
  return size > 0 and input:read(size) or ''
end

local function receive_list()
  local list = {}
  for index = 1, tonumber(receive()) do list[index] = receive() end
  return list
end

local function send(...)
  local words = { ... }
  output:write(string.pack('<I8', #words))
  for _, word in ipairs(words) do output:write(string.pack('<s8', word)) end
  output:flush()
end

-- The value of a reply, and the position after it.
local function parsed(reply, position)
  local line, after = reply:match('^(.-)\r\n()', position)
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == '+' then return { ok = rest }, after end
  if kind == '-' then return { err = rest }, after end
  if kind == ':' then return math.tointeger(rest), after end
  if rest == '-1' then return false, after end
  if kind == '$' then return reply:sub(after, after + rest - 1), after + math.tointeger(rest) + 2 end
  local list = {}
  for index = 1, math.tointeger(rest) do list[index], after = parsed(reply, after) end
  return list, after
end

local function command(...)
  local words = { ... }
  for index, word in ipairs(words) do
    if math.type(word) == 'float' then word = string.format('%.17g', word) end
    assert(type(word) == 'string' or math.type(word), 'a command has strings and numbers only')
    words[index] = tostring(word)
  end
  send('call', table.unpack(words))
  return (parsed(receive(), 1))
end

local redis = { pcall = command }
function redis.call(...)
  local reply = command(...)
  if type(reply) == 'table' and reply.err then error(reply.err) end
  return reply
end

local struct = { pack = string.pack }
function struct.unpack(...)
  local values = table.pack(string.unpack(...))
  if is_float then
    for index = 1, values.n - 1 do values[index] = values[index] + 0.0 end
  end
  return table.unpack(values, 1, values.n)
end

local function environment(keys, arguments)
  local own_math = {}
  for name, value in pairs(math) do own_math[name] = value end
  own_math.frexp, own_math.ldexp, own_math.pow = nil, nil, nil
  local known = {
    redis = redis, struct = struct, math = own_math, string = string, table = table, KEYS = keys, ARGV = arguments,
    ipairs = ipairs, pairs = pairs, tonumber = tonumber, tostring = tostring, type = type,
  }
  local function unknown(_, name) error('unknown global ' .. name) end
  return setmetatable(known, { __index = unknown, __newindex = unknown })
end

while true do
  local source, keys, arguments = receive(), receive_list(), receive_list()
  local is_done, reply = xpcall(function()
    return assert(load(source, 'script', 't', environment(keys, arguments)))()
  end, debug.traceback)
  send(is_done and 'reply' or 'error', tostring(reply))
  is_float = not is_float
end
