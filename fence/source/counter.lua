-- Counts up, to at least the server's clock, in one atomic step.
--
-- KEYS[1]  the counter
-- ARGV[1]  for how long it is kept, in ms
--
-- Answer: the new number, as text; an error, and no change, if the counter holds
-- none. Microseconds since 1970 stay below 2^53 until 2255, and a double counts
-- exactly that far.
local last, n = redis.call('GET', KEYS[1]), 0
if last then
  n = #last <= 16 and string.find(last, '^[0-9]+$') and tonumber(last)
  if not n or n >= 9007199254740991 then
    return redis.error_reply('NOTOKEN the counter holds no number that can be counted up')
  end
end
local now = redis.call('TIME')
local token = string.format('%.0f', math.max(n + 1, now[1] * 1000000 + now[2]))
redis.call('SET', KEYS[1], token, 'PX', ARGV[1])
return token
