-- Requests of users at random, for wrk.
local users = 100000

function init(arguments)
  users = tonumber(arguments[1]) or users
  math.randomseed(os.time())
end

function request()
  wrk.headers["x-user-id"] = string.format("user-%06d", math.random(0, users - 1))
  return wrk.format()
end
