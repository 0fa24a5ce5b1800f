-- The check that stands before a user's script, in the same atomic step.
--
-- KEYS   the user's, then the mark
-- ARGV   the user's, then for how long the mark is kept in ms (0: for ever), then the token
--
-- The mark and these two are taken off before the user's script goes on. Answer,
-- if it does not: the error "STALETOKEN mark" where the mark is larger than the
-- token, or "BADMARK" where it is none, and so nobody can tell.
--
-- A double counts exactly below 2^53 only, and tonumber would take '0x10', '1e3'
-- and 'nan', too: hence digits, and few. The mark is written first: a server that
-- can't take a write aborts the script here, before the user's first.
do
  local key, token, keep = table.remove(KEYS), table.remove(ARGV), table.remove(ARGV)
  local mark = redis.call('GET', key)
  if mark then
    local n = #mark <= 16 and string.find(mark, '^[0-9]+$') and tonumber(mark)
    if not n or n >= 9007199254740992 then return redis.error_reply('BADMARK the mark is no token') end
    if n > tonumber(token) then return redis.error_reply('STALETOKEN ' .. mark) end
  end
  if keep == '0' then
    redis.call('SET', key, token)
  else
    redis.call('SET', key, token, 'PX', keep)
  end
end
