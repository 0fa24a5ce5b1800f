-- One access to a resource: read or set its value, and log that.
--
-- KEYS  the value, the log of all accesses
-- ARGV  "read", or the value to set; what to log, as JSON
--
-- Answer: the value before. The log is what the resource knows, in its order,
-- with the time in microseconds and the value before.
local old = redis.call('GET', KEYS[1]) or '0'
if ARGV[1] ~= 'read' then redis.call('SET', KEYS[1], ARGV[1]) end
local now = redis.call('TIME')
redis.call('RPUSH', KEYS[2], string.format('%s%06d %s %s', now[1], now[2], old, ARGV[2]))
return old
